"""The master's HTTP interface for people and programs: the page, the API and actions.

It makes no decisions.
"""
