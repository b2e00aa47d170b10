"""The public keys that a user sends along, with which they come into the run's containers."""

from __future__ import annotations

from collections.abc import Sequence

from controller.links.hostkeys import BadHostKey, normalise
from controller.service.errors import Invalid

MOST_KEYS = 32
_KINDS = ("ssh-ed25519 ", "ssh-rsa ", "ecdsa-sha2-nistp", "sk-ssh-ed25519@", "sk-ecdsa-sha2-")


def user_keys(lines: Sequence[str]) -> tuple[str, ...]:
    """`KIND BASE64` of each, without comments and doubles. Raises Invalid, naming the line."""
    if len(lines) > MOST_KEYS:
        raise Invalid(f"at most {MOST_KEYS} public keys can be sent", field="ssh_keys")
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        try:
            if not line.startswith(_KINDS) or not line.strip().isprintable():
                raise BadHostKey(line)
            found[normalise(line)] = None
        except BadHostKey:
            raise Invalid(
                "not an OpenSSH public key that can be used here, like ssh-ed25519 AAAA… comment",
                field=f"ssh_keys[{number}]",
            ) from None
    return tuple(found)
