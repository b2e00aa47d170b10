"""The process of a user: set up, launched, watched, judged. The door is `execution.Execution`."""
