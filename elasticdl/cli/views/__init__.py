"""Output of the CLI: console, live view, notebook, JSON and YAML."""
