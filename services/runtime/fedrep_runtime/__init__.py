"""What every process needs: settings, logging, TLS, files."""
