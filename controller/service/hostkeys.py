"""Which host key a new node is pinned to: the one place that decides whether a key is trusted.

A key is trusted because the admin gave it, or gave the fingerprint of the one that the host
presents now. Nothing is ever trusted because it was seen first.
"""

from __future__ import annotations

from typing import Protocol

from controller.links.base import LinkError
from controller.links.hostkeys import BadHostKey, fingerprint, normalise
from controller.service.errors import Invalid, Refused, Unavailable

_PREFIX = "SHA256:"


class HostKeys(Protocol):
    """Asks a host for the key it presents; `controller.links.hostkeys` is the real one."""

    async def fetch(self, host: str, port: int) -> str:
        """OpenSSH public key line. Raises LinkError."""


async def trusted_key(
    host_keys: HostKeys, *, host: str, port: int, host_key: str | None, accepted: str | None
) -> str:
    """The key line to pin. Raises Invalid, Refused (naming the fingerprints) and Unavailable."""
    if host_key is not None:
        return _given(host_key)
    if accepted is not None and not accepted.startswith(_PREFIX):
        raise Invalid(
            f"{accepted!r} is not a fingerprint like 'SHA256:…', as ssh-keygen -l prints it",
            field="accept_host_key",
        )
    presented = await _fetch(host_keys, host, port)
    found = fingerprint(presented)
    if accepted is None:
        raise Refused(
            f"the host key of {host} port {port} is not known: it presents {found}. Compare it "
            f"with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the node, then add the "
            f"node with --accept-host-key {found}",
            code="host_key_unknown",
            field="accept_host_key",
        )
    if found != accepted.rstrip("="):
        raise Refused(
            f"the host key of {host} port {port} is not the accepted one: it presents {found}, "
            f"accepted was {accepted}. Either the fingerprint is another host's, or somebody is "
            f"between the controller and the node",
            code="host_key_mismatch",
            field="accept_host_key",
        )
    return presented


def _given(host_key: str) -> str:
    try:
        return normalise(host_key)
    except BadHostKey as error:
        raise Invalid(
            f"{error} (on the node it is in /etc/ssh/ssh_host_ed25519_key.pub)", field="host_key"
        ) from None


async def _fetch(host_keys: HostKeys, host: str, port: int) -> str:
    try:
        return await host_keys.fetch(host, port)
    except LinkError as error:
        raise Unavailable(
            f"cannot read the host key of {host} port {port}: {error}; is sshd running there and "
            f"reachable from the controller?",
            code="node_unreachable",
            field="host",
        ) from None
