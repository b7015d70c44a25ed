"""Figures against their baselines, measured in one run on one machine.

See docs/explanation/performance.md.
"""
