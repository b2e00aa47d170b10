"""The runner runs one job's commands in its container, and keeps their output until it was read."""

from fairlead.version import __version__ as __version__

API_VERSIONS = ("v1",)
