"""The services of the newest snapshot, for the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from common.proxy.view import Replica, RequestLimit, Service
from fairlead.wire.gateway import GatewayService, Snapshot

Reached = Callable[[tuple[Replica, ...]], tuple[Replica, ...]]
WAKE_SECONDS = 5.0
"""A waiting request wakes its service again after this time: the controller may have been away."""


class SnapshotServices:
    """Finds services in the snapshot (`common.proxy.view.Services`). `wake` tells the
    controller that a request waits."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._by_name: dict[str, Service] = {}
        self._offered: dict[str, GatewayService] = {}
        self._changed = asyncio.Event()

    def update(self, snapshot: Snapshot, reached: Reached) -> None:
        """Serve this; `reached` says which replicas get requests."""
        known, fresh = self._by_name, {}
        for one in snapshot.services:
            offered = service_of(one)
            made = msgspec.structs.replace(offered, replicas=reached(offered.replicas))
            fresh[one.name] = known[one.name] if known.get(one.name) == made else made
        self._by_name = fresh
        self._offered = {one.name: one for one in snapshot.services}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def find(self, name: str) -> Service | None:
        return self._by_name.get(name)

    def offered(self, name: str) -> GatewayService | None:
        """Return the service as the controller offers it."""
        return self._offered.get(name)

    def all(self) -> Iterable[Service]:
        return tuple(self._by_name.values())

    def wake(self, run_id: str) -> None:
        self._wake(run_id)

    async def changed(self, run_id: str) -> None:
        try:
            async with asyncio.timeout(WAKE_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return


def service_of(offered: GatewayService) -> Service:
    return Service(
        run_id=offered.run_id,
        name=offered.name,
        owner=offered.owner,
        auth=offered.auth,
        model=offered.model,
        model_prefix=offered.model_prefix,
        headers=offered.headers,
        eject_for=offered.eject_for,
        groups=offered.groups,
        rate_limits=tuple(
            RequestLimit(prefix=one.prefix, header=one.header, rps=one.rps, burst=one.burst)
            for one in offered.rate_limits
        ),
        replicas=tuple(
            Replica(id=one.id, group=one.group, node_id=one.node_id, socket=one.socket, port=0)
            for one in offered.replicas
        ),
        is_held=offered.is_held,
    )
