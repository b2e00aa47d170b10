"""The first process of a job's container: SSH and the runner. The door is `main`."""
