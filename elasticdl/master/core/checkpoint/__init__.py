"""When checkpoints are taken, and the frozen views that they and evaluations need."""
