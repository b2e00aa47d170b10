"""The error of a configuration. Apart from `convert`, which a command loads only when a file is
wrong."""

from __future__ import annotations


class ConfigurationError(Exception):
    """A field is wrong.

    `field` is a path like `resources.memory` or `commands[2]` ("" for the whole); `allowed` says
    what is allowed. No message repeats a value that may be secret.
    """

    def __init__(self, field: str, message: str, allowed: str | None = None) -> None:
        super().__init__(field, message, allowed)
        self.field = field
        self.message = message
        self.allowed = allowed

    def sentence(self) -> str:
        """Return the message without the field, for the `message` of an error answer."""
        return f"{self.message} (allowed: {self.allowed})" if self.allowed else self.message

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence()}" if self.field else self.sentence()
