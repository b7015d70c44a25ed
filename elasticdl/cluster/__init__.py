"""Where processes run: one protocol, and its implementations."""
