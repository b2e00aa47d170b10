"""Chooses the host key to which a node is pinned, and checks the public keys that a user sends.

A host key is trusted because the admin gave it, or gave the fingerprint of a key that the host has
now. No key is trusted because it was seen first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from common.links.errors import LinkError
from common.links.host_keys import BadHostKey, describe_all, fingerprint, normalise, parse
from common.refusals import Invalid, Unavailable, Unprocessable
from fairlead.wire.public_keys import KINDS

_PREFIX = "SHA256:"
_ON_THE_NODE = "`cat /etc/ssh/ssh_host_*_key.pub | ssh-keygen -lf -`"


class HostKeys(Protocol):
    """Reads the keys of a host; `common.links.ssh` is the real one."""

    async def fetch(self, host: str, port: int) -> Sequence[str]:
        """Return OpenSSH public key lines, one for each key, the preferred one first. Raises
        LinkError."""


async def trusted_key(
    host_keys: HostKeys, *, host: str, port: int, host_key: str | None, accepted: str | None
) -> str:
    """Return the key line to pin. Raises Invalid, Unprocessable (with the fingerprints) and
    Unavailable."""
    if host_key is not None:
        return _given(host_key)
    if accepted is not None and not accepted.startswith(_PREFIX):
        raise Invalid(
            f"{accepted!r} is not a fingerprint like 'SHA256:…', as ssh-keygen -l prints it",
            field="accept_host_key",
        )
    lines = await _fetch(host_keys, host, port)
    found = describe_all(map(parse, lines))
    if accepted is None:
        raise Unprocessable(
            f"the host key of {host} port {port} is not known: it has {found}. Compare them with "
            f"what {_ON_THE_NODE} prints on the node, then accept one: --accept-host-key "
            f"{fingerprint(lines[0])}",
            code="host_key_unknown",
            field="accept_host_key",
        )
    for line in lines:
        # ssh-keygen leaves out the padding of base64; other programs print it.
        if fingerprint(line) == accepted.rstrip("="):
            return line
    raise Unprocessable(
        f"{host} port {port} has no host key with the accepted fingerprint {accepted}: it has "
        f"{found}. Compare them with what {_ON_THE_NODE} prints on the node; if none of them is "
        f"there, another machine answers at this address",
        code="host_key_mismatch",
        field="accept_host_key",
    )


def _given(host_key: str) -> str:
    try:
        return normalise(host_key)
    except BadHostKey as error:
        raise Invalid(
            f"{error} (on the node it is in /etc/ssh/ssh_host_ed25519_key.pub)", field="host_key"
        ) from None


async def _fetch(host_keys: HostKeys, host: str, port: int) -> Sequence[str]:
    try:
        return await host_keys.fetch(host, port)
    except LinkError as error:
        raise Unavailable(
            f"cannot read the host key of {host} port {port}: {error}; is sshd running there and "
            f"reachable from the controller?",
            code="node_unreachable",
            field="host",
        ) from None


MAX_KEYS = 32


def user_keys(lines: Sequence[str]) -> tuple[str, ...]:
    """Return `KIND BASE64` of each line, without comments and duplicates. Raises Invalid, with the
    line."""
    if len(lines) > MAX_KEYS:
        raise Invalid(f"at most {MAX_KEYS} public keys can be sent", field="ssh_keys")
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        try:
            if line.split(" ", 1)[0] not in KINDS or not line.strip().isprintable():
                raise BadHostKey(line)
            found[normalise(line)] = None
        except BadHostKey:
            raise Invalid(
                "not an OpenSSH public key that can be used here, like ssh-ed25519 AAAA… comment",
                field=f"ssh_keys[{number}]",
            ) from None
    return tuple(found)
