"""The master's interface for a job's processes: service of calls, sessions, polls and orders."""
