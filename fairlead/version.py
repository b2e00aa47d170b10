"""The version of Fairlead, the same for all its programs."""

__version__ = "0.1.0"
