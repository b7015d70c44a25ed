"""Decides on checkpoints, and on the frozen views that they and evaluations need."""
