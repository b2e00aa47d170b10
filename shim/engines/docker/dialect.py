"""The differences between the engines that answer to Docker's API.

Docker is described here; another engine describes itself in a module of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import msgspec

from fairlead.wire.node import EngineKind
from shim.engines.base import EngineUnavailable

_SYSTEMS_WORDS = re.compile(r"Error\(\d+, '([^']+)'\)|\[Errno \d+\] ([^\"')]+)")
"""The pattern by which requests quotes the system's error inside its own message."""
_DENIED = "Permission denied"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's ways. The variable `variable` of the environment holds its URL; without it, the
    URL is `usual_url`."""

    kind: EngineKind
    name: str
    variable: str
    usual_url: str
    when_silent: str
    """Advice to the operator of a node on which the engine does not answer."""
    cgroups: Callable[[str], tuple[str, ...]]
    """Return where the kernel may account for a container, below the root of its cgroups."""
    end_events: tuple[str, ...]
    """The names of the events that end a container, and of a signal to it."""
    names_signals: bool = True
    """The event of a signal names the signal. Otherwise each counts as one that ends."""
    look_again: float | None = None
    """Seconds after which an end is looked for that no event told; None: no event is lost."""
    filters_past: bool = False
    """A container's past can be asked for alone: the engine keeps its events in a file."""
    conflicts: tuple[str, ...] = ()
    """Parts of messages that mean what Docker says with status 409."""
    missing: tuple[str, ...] = ()
    """Parts of messages that mean what Docker says with status 404."""
    last_of_pull: str = "Status:"
    """The beginning of the last message of a pull that was not broken off."""
    network_options: dict[str, str] = {}
    """What keeps a network apart from the others, if bridges by themselves are not."""
    asks_registries: bool = True
    """It asks a registry whether it gives an image. Otherwise the image is pulled again, which
    costs only its manifest as long as its layers are here."""
    mixes_digests: bool = False
    """It lists every digest of an image under each of its names, also those of other registries."""
    gives_named_devices: bool = True
    """It obeys requests for devices by CDI and by a vendor's hook."""
    makes_missing_sources: bool = False
    """It makes an empty folder where the source of a bind mount is missing."""

    @property
    def url(self) -> str:
        return os.environ.get(self.variable, self.usual_url)

    def is_missing(self, message: str) -> bool:
        return any(part in message for part in self.missing)

    def is_conflict(self, message: str) -> bool:
        return any(part in message for part in self.conflicts)

    def unreachable(self, error: Exception) -> EngineUnavailable:
        """Return the error for an engine that does not answer, with what to do."""
        found = _SYSTEMS_WORDS.search(str(error))
        why = (found[1] or found[2]) if found else str(error)[:200]
        advice = self.when_silent
        if why == _DENIED:
            advice = "the shim needs root, or the group of this socket"
        return EngineUnavailable(
            f"the {self.name} engine at {self.url} does not answer: {why}; {advice}"
        )


def _cgroups(container_id: str) -> tuple[str, ...]:
    """Return the places of both of Docker's cgroup drivers, and ours for containers in the node's
    network."""
    scope = f"docker-{container_id}.scope"
    in_network = (f"docker/{container_id}", f"system.slice/{scope}")
    return (*in_network, f"fairlead/{container_id}", f"fairlead.slice/{scope}")


DOCKER = Dialect(
    kind=EngineKind.DOCKER,
    name="Docker",
    variable="DOCKER_HOST",
    usual_url="unix:///var/run/docker.sock",
    when_silent="is Docker installed and running there? (DOCKER_HOST is its address; --engine "
    "process does without, and isolates nothing)",
    cgroups=_cgroups,
    end_events=("die", "destroy", "kill"),
)
