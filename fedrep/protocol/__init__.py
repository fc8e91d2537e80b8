"""The FedREP round as state machines without I/O: time, randomness and messages are handed in, effects are handed out."""
