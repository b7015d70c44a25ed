"""Processes as pods, and everything that speaks Kubernetes."""
