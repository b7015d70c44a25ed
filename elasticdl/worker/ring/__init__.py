"""Synchronous training on an AllReduce ring."""
