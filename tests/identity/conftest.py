"""Fixtures of the identity tests."""

from tests.harness.enrolment_desk import authority

__all__ = ["authority"]
