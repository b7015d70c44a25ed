"""How the CLI prints: console, live view, notebook, JSON and YAML."""
