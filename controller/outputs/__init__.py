"""The outputs of attempts: the store beside logs, and the bucket that takes large ones."""
