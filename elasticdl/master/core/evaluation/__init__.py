"""Evaluation rounds."""
