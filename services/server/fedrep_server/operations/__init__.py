"""A server as its operator sees it: settings, start and stop, leadership, metrics, backups."""
