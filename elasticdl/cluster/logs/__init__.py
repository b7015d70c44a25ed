"""Log files of processes and logs of pods."""
