"""Chooses the OCI runtime that starts a node's containers: with `auto`, crun where it works.

crun is a small C program where runc is a large Go one that runs itself several times, so a start
takes a fraction of the time. It refuses some nodes, such as those with cgroups of both versions:
only a tried start tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.wire.shim import EngineKind, Finding, FindingLevel
from shim.engines.docker.api import Call
from shim.engines.docker.examination import CRUN, Trial, try_container
from shim.errors import EngineError
from shim.settings import AUTO_RUNTIME, Settings

log = logging.getLogger(__name__)
_USUAL = "runc"


def to_try(kind: EngineKind, info: Mapping[str, Any]) -> str | None:
    """Return the OCI runtime that may be better than the engine's default; None: there is none.

    A default other than runc, such as `nvidia`, is the operator's choice and does more than start
    containers.
    """
    knows_it = CRUN in (info.get("Runtimes") or ())
    is_usual = info.get("DefaultRuntime") == _USUAL
    return CRUN if kind is EngineKind.DOCKER and knows_it and is_usual else None


class OciRuntime:
    """The choice of one life of the shim. Containers that run already keep theirs."""

    def __init__(
        self, settings: Settings, install_id: str, attempt: Callable[..., Finding] = try_container
    ) -> None:
        self._settings = settings
        # One name for each shim: what a crash leaves of a trial is removed by the next one.
        self._trial = Trial(name=f"fairlead-trial-{install_id}", limits=True)
        self._attempt = attempt
        self._trying: asyncio.Task[str | None] | None = None

    def open(self, call: Call, api: Any, kind: EngineKind, info: Mapping[str, Any]) -> None:
        """Begin the trial, if there is something to try; the first container waits for it."""
        found = to_try(kind, info)
        if self._settings.oci_runtime == AUTO_RUNTIME and found is not None:
            self._trying = asyncio.create_task(self._tried(call, api, found), name="OCI runtime")

    async def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._trying

    async def name(self) -> str | None:
        """Return the engine's name of it; None: the engine's default."""
        if self._settings.oci_runtime != AUTO_RUNTIME:
            return self._settings.oci_runtime
        # A task that is stopped while it waits must not end the trial for the others.
        return None if self._trying is None else await asyncio.shield(self._trying)

    async def _tried(self, call: Call, api: Any, runtime: str) -> str | None:
        try:
            found = await call(
                lambda: self._attempt(api, self._settings.runtime, runtime, self._trial)
            )
        except EngineError as error:
            log.warning("%s does not start a container here, so runc does: %s", runtime, error)
            return None
        if found.level is not FindingLevel.OK:
            log.warning("with %s %s, so runc starts containers", runtime, found.message)
            return None
        log.info("%s starts containers", runtime)
        return runtime
