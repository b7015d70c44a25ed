"""The master's decisions: events in, commands out. Pure: no I/O, thread, clock or RPC type."""
