"""Who is in the ring, and the ring's sequence of work."""
