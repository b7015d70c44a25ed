"""Tasks besides training: evaluation, prediction, export, callbacks."""
