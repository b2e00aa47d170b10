"""The user's process: set up, launched, watched, judged. `execution.Execution` runs it."""
