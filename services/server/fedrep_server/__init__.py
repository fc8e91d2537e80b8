"""The federation's server: calls from outside, runs and their rounds, the store, and what an operator needs."""
