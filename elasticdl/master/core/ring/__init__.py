"""Membership of the ring, and its sequence of work items."""
