"""The version that the shim reports."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("fairlead")
except PackageNotFoundError:
    VERSION = "0"
