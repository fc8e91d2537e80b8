"""FedREP as a pure library: every formula of the paper as a typed function, with no clock, socket, disk or logging."""

__version__ = "0.1.0"
