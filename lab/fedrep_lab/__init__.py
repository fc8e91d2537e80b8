"""The paper's experiments on the code of the service."""
