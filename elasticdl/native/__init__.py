"""The C++ extension `_native`: tables, servers, wire and readers.

It imports nothing of the project.
"""
