"""gRPC: who may call what, how requests become messages, and how errors become statuses."""
