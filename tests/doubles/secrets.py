"""Stored secrets that are in memory, in the place of the controller's vault."""

from __future__ import annotations

from collections.abc import Mapping

from controller.vault import SecretMissing


class GivenSecrets:
    """The same secrets for every user; `stored` can be changed."""

    def __init__(self, stored: Mapping[str, str] = {}) -> None:
        self.stored = dict(stored)

    def value(self, user: str | None, name: str) -> str:
        try:
            return self.stored[name]
        except KeyError:
            raise SecretMissing(f"there is no secret {name} of {user}") from None


NO_SECRETS = GivenSecrets()
