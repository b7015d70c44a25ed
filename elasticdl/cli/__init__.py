"""The command line and the Python API.

Starts the master through the cluster interface and shows its progress. Never imports TensorFlow.
"""
