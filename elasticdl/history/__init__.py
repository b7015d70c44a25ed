"""What is kept of a job's life: one record that the page, `elasticdl why` and report.html are made
from.
"""
