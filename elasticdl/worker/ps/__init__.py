"""Asynchronous training through parameter servers."""
