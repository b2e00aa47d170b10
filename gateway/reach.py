"""Tries each new replica before it gets requests: a gateway may be unable to reach its node.

A replica is ready in the controller's eyes once the gateway has reached it. So a firewall between
the two, or a wrong key, holds a rollout up instead of sending requests into the void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from common.links.errors import LinkError
from common.proxy.view import Connect, Replica
from fairlead.wire.errors import AgentError, AgentUnavailable

TRY_SECONDS = 10.0
AGAIN_SECONDS = 2.0


class ReplicaReach:
    """Which replicas this gateway has reached. `changed` is called with each new finding."""

    def __init__(self, connect: Connect, changed: Callable[[], None]) -> None:
        self._connect = connect
        self._changed = changed
        self._findings: dict[str, str] = {}
        self._tries: dict[str, asyncio.Task[None]] = {}

    def update(self, replicas: Iterable[Replica], *, are_known: bool) -> None:
        """Try those of these replicas that are new, and forget all others. `are_known`: they were
        reached in an earlier life of the agent."""
        wanted = {replica.id: replica for replica in replicas}
        for id in [one for one in self._tries if one not in wanted]:
            self._tries.pop(id).cancel()
        self._findings = {id: why for id, why in self._findings.items() if id in wanted}
        for id, replica in wanted.items():
            if are_known:
                self._findings[id] = ""
            elif id not in self._tries and self._findings.get(id) != "":
                self._tries[id] = asyncio.create_task(self._try(replica), name=f"reach {id}")

    def findings(self) -> dict[str, str]:
        """Return why each replica cannot be reached, by id; empty: it was reached."""
        return dict(self._findings)

    def reached(self, replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """Return those that were reached; all, if none was."""
        return tuple(one for one in replicas if self._findings.get(one.id) == "") or replicas

    async def close(self) -> None:
        tries = list(self._tries.values())
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)

    async def _try(self, replica: Replica) -> None:
        """Try until the replica is reached."""
        while True:
            why = await self._why_not(replica)
            if self._findings.get(replica.id) != why:
                self._findings[replica.id] = why
                self._changed()
            if not why:
                self._tries.pop(replica.id, None)
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _why_not(self, replica: Replica) -> str:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                stream = await self._connect(replica)
        except TimeoutError:
            return f"no answer within {TRY_SECONDS:g} s"
        except (LinkError, AgentError, AgentUnavailable) as error:
            return str(error) or type(error).__name__
        stream.writer.close()
        return ""
