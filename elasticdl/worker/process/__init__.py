"""The worker as a process: lifecycle, signals, shutdown, orders, gauges."""
