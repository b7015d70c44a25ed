"""The process that is the parent of a local job's masters, template, workers and servers.

It is to a job on this machine what API server and kubelet are to one on a cluster (ADR 15).
"""
