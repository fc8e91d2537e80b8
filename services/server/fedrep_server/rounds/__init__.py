"""Runs and their rounds: messages and time go into the core's machines, what they decide goes to the store."""
