"""Fixtures of the runtime's tests."""

from tests.harness.enrolment_desk import authority

__all__ = ["authority"]
