"""The master's page: what people and programs see of a job over HTTP, and what they may ask of it.

Decides nothing.
"""
