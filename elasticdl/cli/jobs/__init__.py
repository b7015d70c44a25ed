"""Find, start and talk to jobs, local or on Kubernetes."""
