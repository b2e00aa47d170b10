"""The first process of a job's container: SSH and the runner. `main` starts it."""
