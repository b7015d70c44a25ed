"""From leases to trained batches: read, feed, load, loop, report."""
