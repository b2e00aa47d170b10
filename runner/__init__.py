"""The runner runs one job's commands in its container, and keeps their output until it was read."""

__version__ = "0.1.0"
API_VERSIONS = ("v1",)
