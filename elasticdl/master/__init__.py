"""The master of a job: facts in, orders out (core), and the shell that hears the facts and carries
out the orders.
"""
