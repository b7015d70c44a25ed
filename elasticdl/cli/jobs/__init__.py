"""How the CLI finds, starts and talks to jobs, local or on Kubernetes."""
