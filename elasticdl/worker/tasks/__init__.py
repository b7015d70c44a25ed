"""Tasks: training, evaluation, prediction, export and callbacks."""
