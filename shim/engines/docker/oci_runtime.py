"""Chooses the OCI runtime that starts a node's containers: with `auto`, crun where it works.

crun is a small C program where runc is a large Go one that runs itself several times, so a start
takes a fraction of the time. It refuses some nodes, such as those with cgroups of both versions:
only a tried start tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.wire.node import EngineKind, Finding, FindingLevel
from shim.engines.docker.api import in_own_thread
from shim.engines.docker.examination import CRUN, Trial, try_container
from shim.settings import AUTO_RUNTIME, Settings

log = logging.getLogger(__name__)
_USUAL = "runc"
_MAX_WAIT_SECONDS = 20.0
"""Of containers, for a trial. A loaded machine needs a second; an OCI runtime that hangs has a
minute for each call to the engine."""
_THREAD = "shim-oci-runtime"
LOOK_SECONDS = 5.0
"""A look reads files of each process of the node, 20 us for each. On a node that is busy many
starts take long, so the pause doubles."""
_PROC = Path("/proc")
_WAITS_FOR_A_WRITER = "wait_for_partner"
"""The function of fs/pipe.c that opens a FIFO, as /proc/PID/wchan (proc(5)) names it."""
_RUNTIMES = ("runc:[", "crun")
_UNKNOWN = ("unknown runtime specified", "unknown or invalid runtime")


def to_try(kind: EngineKind, info: Mapping[str, Any]) -> str | None:
    """Return the OCI runtime that may be better than the engine's default; None: there is none.

    A default other than runc, such as `nvidia`, is the operator's choice and does more than start
    containers.
    """
    knows_it = CRUN in (info.get("Runtimes") or ())
    is_usual = info.get("DefaultRuntime") == _USUAL
    return CRUN if kind is EngineKind.DOCKER and knows_it and is_usual else None


class OciRuntime:
    """The choice for the next containers. Those that run already keep theirs.

    `translated`: the context in which errors of docker-py become those of engines.
    """

    def __init__(
        self,
        settings: Settings,
        install_id: str,
        kind: EngineKind,
        translated: Callable[[], AbstractContextManager[None]],
        attempt: Callable[..., Finding] = try_container,
        max_wait: float = _MAX_WAIT_SECONDS,
    ) -> None:
        self._settings = settings
        self._kind = kind
        self._translated = translated
        # One name for each shim: what a crash leaves of a trial is removed by the next one.
        self._trial = Trial(name=f"fairlead-trial-{install_id}", limits=True)
        self._attempt = attempt
        self._max_wait = max_wait
        self._api: Any = None
        self._trying: asyncio.Task[str | None] | None = None
        self._wait_until = 0.0
        self._is_doubted = False

    def open(self, api: Any, info: Mapping[str, Any]) -> None:
        """Begin the trial, if there is something to try; the first containers wait for it."""
        self._api = api
        if self._is_auto and to_try(self._kind, info) is not None:
            self._begin(info)

    def again(self) -> None:
        """Choose anew: the engine may have begun with other settings, or crun may be gone."""
        if self._api is None or not self._is_auto:
            return
        if self._trying is None or self._trying.done():
            self._begin(None)
        else:
            self._is_doubted = True

    async def close(self) -> None:
        """End the choice. A trial goes on in its thread, which holds up nobody."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait((self._trying,))

    async def name(self) -> str | None:
        """Return the engine's name of it; None: the engine's default, also while a trial takes
        long."""
        if self._settings.oci_runtime != AUTO_RUNTIME:
            return self._settings.oci_runtime
        trying = self._trying
        if trying is None:
            return None
        # Not `wait_for`: a task that is stopped while it waits must not end the trial for others.
        left = self._wait_until - asyncio.get_running_loop().time()
        await asyncio.wait((trying,), timeout=max(0.0, left))
        return trying.result() if trying.done() and not trying.cancelled() else None

    def is_gone(self, error: Exception) -> bool:
        """Return whether the engine refused a container because it no longer knows the OCI runtime
        that was chosen; then its default starts the next ones."""
        if not self._is_auto or not any(words in str(error).lower() for words in _UNKNOWN):
            return False
        self.again()
        return True

    @property
    def _is_auto(self) -> bool:
        return self._settings.oci_runtime == AUTO_RUNTIME and self._kind is EngineKind.DOCKER

    def _begin(self, info: Mapping[str, Any] | None) -> None:
        self._wait_until = asyncio.get_running_loop().time() + self._max_wait
        self._trying = asyncio.create_task(self._chosen(info), name="OCI runtime")

    async def _chosen(self, info: Mapping[str, Any] | None) -> str | None:
        while True:
            self._is_doubted = False
            found = await self._tried(info)
            if not self._is_doubted:
                return found
            info = None

    async def _tried(self, info: Mapping[str, Any] | None) -> str | None:
        """Return the OCI runtime to use. Whatever goes wrong in a trial, containers start."""
        folder = self._settings.runtime
        try:
            with self._translated():
                if info is None:
                    asked: Mapping[str, Any] = await in_own_thread(self._api.info, _THREAD)
                    info = asked
                runtime = to_try(self._kind, info)
                if runtime is None:
                    return None
                attempt = partial(self._attempt, self._api, folder, runtime, self._trial)
                found = await in_own_thread(attempt, _THREAD)
        except Exception as error:
            log.warning("%s does not start a container here, so runc does: %s", CRUN, error)
            return None
        if found.level is not FindingLevel.OK:
            log.warning("with %s %s, so runc starts containers", runtime, found.message)
            return None
        log.info("%s starts containers", runtime)
        return runtime


class StartWatch:
    """Ends an OCI runtime that waits for a FIFO in place of a container's list of users.

    The lists are looked at before a start (`images.UserFiles`), but two jobs may share a volume
    over /etc, and one may put a FIFO there after the look. The runtime opens it in the container
    and waits for ever, and the engine with it: nobody can look at this container or remove it.

    It looks as long as the context lasts. `has_ended_it`: there was such a runtime.
    """

    def __init__(self, container_id: str) -> None:
        self._container_id = container_id
        self.has_ended_it = False

    async def __aenter__(self) -> StartWatch:
        self._looking = asyncio.create_task(self._look(), name="a start that takes long")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._looking.cancel()
        await asyncio.wait({self._looking})
        if not self._looking.cancelled() and (failed := self._looking.exception()) is not None:
            log.warning("the start of container %s is not watched: %r", self._container_id, failed)

    async def _look(self) -> None:
        pause = LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause *= 2
            if await asyncio.to_thread(_end_waiting, self._container_id):
                self.has_ended_it = True
                log.warning("container %s: its list of users is a FIFO", self._container_id)


def _end_waiting(container_id: str) -> bool:
    """Kill the container's runtime if it waits for a FIFO; return whether it did. Blocking."""
    has_ended_one = False
    for name in os.listdir(_PROC):
        # At once: the kernel gives the number of an ended process to another one.
        if name.isdecimal() and _waits(_PROC / name, container_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGKILL)
                has_ended_one = True
    return has_ended_one


def _waits(process: Path, container_id: str) -> bool:
    """Return whether this process is the runtime, in the container's cgroup and not yet the job's
    program: a job may wait for a FIFO of its own."""
    try:
        return (
            container_id in (process / "cgroup").read_text()
            and (process / "wchan").read_text() == _WAITS_FOR_A_WRITER
            and (process / "comm").read_text().startswith(_RUNTIMES)
        )
    # It has ended meanwhile.
    except OSError:
        return False
