"""Tables of rows by id and their update rules: C++ and a NumPy twin that equals it."""
