"""Experiment trackers and traces: processes beside the master send them from a job's directory.

Only one module imports the package of each, and only in its process.
"""
