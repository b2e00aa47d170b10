"""Chooses the host key that an installation trusts. No key is trusted because it was seen first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.links.host_keys import BadHostKey, fingerprint, normalise
from controller.commands.hosts.connection import HostError, Target, described, host_keys, known_key


class UnknownHostKey(HostError):
    """Only the operator can decide whether the host's key is right."""

    def __init__(self, host: str, found: Sequence[str]) -> None:
        self.host = host
        self.preferred = found[0]
        self.shown = described(found)
        super().__init__(
            f"the host key of {host} is not known: it has {self.shown}. Compare them with what "
            f"`cat /etc/ssh/ssh_host_*_key.pub | ssh-keygen -lf -` prints there, then accept one: "
            f"--accept-host-key {fingerprint(found[0])}"
        )


async def trusted_key(
    target: Target, *, host_key: str | None, accepted: str | None, pinned: str | None
) -> str:
    """Return the trusted key line: the given one, or the host's present key whose fingerprint the
    operator accepted, the controller has pinned, or known_hosts has.

    Raises HostError, UnknownHostKey.
    """
    if host_key is not None and accepted is not None:
        raise HostError("give either --host-key or --accept-host-key")
    if host_key is not None:
        try:
            return normalise(host_key)
        except BadHostKey as error:
            raise HostError(f"--host-key: {error}") from None
    found = await host_keys(target)
    wanted = accepted or pinned
    if wanted is None:
        known = await asyncio.to_thread(known_key, target, found)
        if known is None:
            raise UnknownHostKey(target.host, found)
        return known
    for line in found:
        # ssh-keygen leaves out the padding of base64, which other tools print.
        if fingerprint(line) == wanted.rstrip("="):
            return line
    why = "was accepted" if accepted else "is pinned by the controller"
    raise HostError(
        f"{target.host} has the host key {described(found)}, but {wanted} {why}: if the host was "
        f"reinstalled, compare them there and give --accept-host-key SHA256:…; else another "
        f"machine answers at this address"
    )
