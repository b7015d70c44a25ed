"""The worker as a process: signals, shutdown, orders, gauges, hang detection."""
