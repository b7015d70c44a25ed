"""Where a master runs: this machine, or a pod on Kubernetes."""
