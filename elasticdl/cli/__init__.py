"""What people type.

Starts the master through the cluster's seam and shows what it tells; never imports TensorFlow.
"""
