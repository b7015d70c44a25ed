"""One module a command of `elasticdl`."""
