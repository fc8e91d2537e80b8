"""Fixtures of the identity tests."""

from tests.harness.enrolment_desk import authority
from tests.harness.scenarios import lines

__all__ = ["authority", "lines"]
