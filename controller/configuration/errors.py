"""The one way in which a configuration is refused."""

from __future__ import annotations


class ConfigurationError(Exception):
    """`field` is a path like `resources.memory` or `commands[2]` ("" for the whole); `allowed` says
    what would be right. No message repeats a value that may be secret."""

    def __init__(self, field: str, message: str, allowed: str | None = None) -> None:
        super().__init__(field, message, allowed)
        self.field = field
        self.message = message
        self.allowed = allowed

    def sentence(self) -> str:
        """The message without the field, for the `message` of an error answer."""
        return f"{self.message} (allowed: {self.allowed})" if self.allowed else self.message

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence()}" if self.field else self.sentence()
