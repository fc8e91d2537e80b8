"""Fixtures of the silo's tests."""

from tests.harness.scenarios import lines

__all__ = ["lines"]
