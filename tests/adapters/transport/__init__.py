"""The transport on loopback, with real processes."""
