"""Elastic deep learning with a master per job."""
