"""A parameter server: pulls and pushes in C++, and the control plane that the master has over
it.
"""
