"""The silo's daemon and the evaluator."""
