"""A parameter server: pulls and pushes in C++, and the control plane for the master."""
