"""Checkpoints: one cut of everything, as files that verify themselves."""
