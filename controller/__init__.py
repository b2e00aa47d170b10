"""The controller takes runs, places them on nodes, and follows them to their end."""

from fairlead.version import __version__ as __version__

API_VERSIONS = ("v1",)
