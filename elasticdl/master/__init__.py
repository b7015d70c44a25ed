"""The master of a job: the core, which turns events into commands, and the shell around it."""
