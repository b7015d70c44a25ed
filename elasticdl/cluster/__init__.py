"""Where processes run: one protocol, and the places that implement it."""
