"""The controller takes runs, places them on nodes, and follows them to their end."""

__version__ = "0.1.0"
API_VERSIONS = ("v1",)
