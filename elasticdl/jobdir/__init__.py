"""The files of a job's directory: below master and CLI, which both read and write them."""
