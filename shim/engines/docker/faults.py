"""Decides who caused the Docker engine's failure to create or start a container. Pure.

Either the job asked for something impossible (a mount at an impossible path, limits that the engine
may not raise), or the node has a fault (a full disk, a network or runtime that is gone). The
engine's status tells the two apart only roughly: it answers 400 where the node's runtime is missing
and 500 where the job's user is. So known words in the message decide first; without them a 4xx is
the job's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from shim.engines.base import NodeFault
from shim.engines.docker.api import Conflict, DockerRefused, NotFound
from shim.engines.docker.request import ENTRYPOINT, explain_start
from shim.errors import EngineError

_NODES = (
    "no space left on device",
    "disk quota exceeded",
    "bind source path does not exist",
    "unknown runtime",
    "unknown or invalid runtime",
    f'exec: "{ENTRYPOINT}"',
    f"executable file `{ENTRYPOINT}` not found",
    "unable to retrieve oci runtime error",
)
"""Every bind mount has a source of the shim's own, volumes included. crun has backquotes; the last
words are containerd's, of an OCI runtime that did not run."""
_JOBS = (
    *("rlimit", "docker-init", "container-init", "unable to apply caps", "capset"),
    *("unable to find user", "unable to find group", "unable to find additional groups"),
    "uids and gids must be in range",
    *("not a directory", "is a directory", "too many links", "file name too long"),
    *("too many levels of symbolic links", "cannot mount volume over existing file"),
    *("to rootfs at", "memory limit too low", "unable to set memory limit", "sethostname"),
    "requirement error",
)
"""A folder that turned into a file, a circle of links or a long name is an image's WORKDIR or
VOLUME, unless it is one of the engine's own files. `to rootfs at` comes before a mount's target;
NVIDIA's hook prints the last one for an image that needs a newer driver."""
_RUNTIME = PurePosixPath(ENTRYPOINT).parent.parent
_HIDDEN = (f'exec: "{ENTRYPOINT}"', f"`{ENTRYPOINT}`")
# Docker's words, since 28 after those of its networking, and Podman's.
_ADDRESS_TAKEN = re.compile(
    r"(failed to set up container networking: )?address already in use"
    r"|.*requested ip address \S+ is already allocated.*",
    re.DOTALL,
)
_GONE_SOURCE = re.compile(
    r'mounting "(?P<source>[^"]+)" to rootfs at .*l?stat (?P=source): no such'
)
_ENGINES_FILE = re.compile(
    r"^error creating overlay mount|^failed to mount|fork/exec /"
    r"|/(sys/fs/cgroup|overlay2?/(l|[0-9a-z]{25,64}(-init)?)|containers/[0-9a-f]{64})(/[^\s:]*)?: "
    r"(not a directory|is a directory|too many l|file name too long)"
)
"""What a full or broken disk, or a cgroup, makes of the engine's own files."""
_ROOT = re.compile(r"/merged/|/rootfs")
"""Below it are a container's files."""
# The words of runc and of crun when the kernel refuses a value for a cgroup's limit.
_REFUSED_LIMIT = re.compile(r"(failed to write .*|write (file|to) `[^`]+`): invalid argument")


def is_of_its_address(error: EngineError) -> bool:
    """Return whether another container has the address in the run's network. For a port the engine
    says "listen tcp4 …: bind: address already in use"."""
    return _ADDRESS_TAKEN.fullmatch(str(error).strip().lower()) is not None


def is_of_the_first_process(error: EngineError) -> bool:
    """Return whether the container's first program was not found, or may not be run, there."""
    return any(words in str(error).lower() for words in _HIDDEN)


def hides_the_runtime(inspected: Mapping[str, Any], error: EngineError) -> bool:
    """Return whether the container itself is why its first program was not found, or may not be
    run: a VOLUME of its image lies below the runtime, or its user is not root, who may enter each
    folder. Else it is the node, whose kernel or security module may refuse it."""
    targets = [PurePosixPath(one["Destination"]) for one in inspected.get("Mounts", ())]
    if any(_RUNTIME in target.parents for target in targets):
        return True
    user, _, _ = str(inspected["Config"].get("User", "")).partition(":")
    return "permission denied" in str(error).lower() and user not in ("", "0", "root")


def of_create(error: EngineError) -> EngineError:
    """Return the error to raise when the engine refused to create the container."""
    return _named(error, str(error))


def of_start(error: EngineError) -> EngineError:
    """Return the error to raise when the engine refused to start it, with what the user can do."""
    return _named(error, explain_start(str(error)))


def _named(error: EngineError, message: str) -> EngineError:
    if not isinstance(error, DockerRefused):
        return error
    kind = NodeFault if _is_nodes(error, str(error).lower()) else EngineError
    return kind(message)


def _is_nodes(error: DockerRefused, text: str) -> bool:
    if any(words in text for words in _NODES) or _GONE_SOURCE.search(text):
        return True
    if _ENGINES_FILE.search(text) and not _ROOT.search(text):
        return True
    if any(words in text for words in _JOBS) or _REFUSED_LIMIT.search(text):
        return False
    return isinstance(error, NotFound | Conflict) or error.status >= 500
