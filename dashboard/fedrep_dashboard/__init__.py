"""The admins' dashboard: observer feed to REST, streams and pages."""
