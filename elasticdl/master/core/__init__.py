"""The master's decisions: facts in, orders out. Pure: no I/O, no thread, no clock, no RPC type."""
