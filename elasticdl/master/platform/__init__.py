"""Where a master runs: on this machine, or in a pod on Kubernetes."""
