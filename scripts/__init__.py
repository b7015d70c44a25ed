"""What `make` runs besides the package itself."""
