"""Trainers for PyTorch models. `settings` imports no torch; `build` is where a trainer is made from settings."""
