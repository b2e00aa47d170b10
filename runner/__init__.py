"""The runner: lives beside one job, runs its commands and keeps its output until it was read."""

__version__ = "0.1.0"
API_VERSIONS = ("v1",)
