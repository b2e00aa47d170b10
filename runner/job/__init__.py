"""The user's job: set up, run, watched, judged. `execution.Execution` runs it."""
