"""Certificates: the authority, enrolment, renewal, revocation, and how peers are judged."""
