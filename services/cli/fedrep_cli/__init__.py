"""The `fedrep` command."""
