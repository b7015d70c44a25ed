"""The commands of `elasticdl`, one module each."""
