"""Experiment trackers: a process beside the master sends a job's curves from its directory to them.

Only the modules of one tracker import its package, and only in that process.
"""
