"""The journal: every event of the job on disk, and the state that a next master continues with."""
