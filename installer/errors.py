"""The installer's one error."""


class InstallError(Exception):
    """The node cannot be installed so; the message says why and what to do about it."""
