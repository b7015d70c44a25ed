"""Tables of rows by id, their update rules and their initial values."""
