"""Checkpoints: one cut of all state, in files with checksums."""
