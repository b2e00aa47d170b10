"""The replicas that the proxy uses: requests in flight, kept connections, and recent failures."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from common.links.errors import LinkError
from common.proxy.outliers import Outliers
from common.proxy.upstream import ReplicaConnection
from common.proxy.view import Connect, Replica
from fairlead.wire.errors import AgentError, AgentUnavailable

CONNECT_SECONDS = 10.0
AVOIDED_SECONDS = 2.0
"""A replica that could not be reached is only used again after this time, unless there is no
other: it would have the fewest requests, and so get all."""
MAX_KEPT = 64
"""Unused connections of one replica."""
MAX_OPENING = 64
"""Connections of one replica that are opened at once; others wait. A unix socket on their way keeps
100 that nobody has taken yet, sshd's 128, and refuses the next one: of 2,000 requests at once, more
than 1,000 failed."""


class Unreachable(Exception):
    """No connection to the replica's port is possible; nothing was sent. The message says why."""


class _Use:
    """One replica, while it has requests or kept connections."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.kept: deque[ReplicaConnection] = deque()
        self.avoided_until = 0.0
        self.last_used = 0
        self.openings = asyncio.Semaphore(MAX_OPENING)
        self.silences = 0
        """How often its node did not answer in time."""

    @property
    def is_empty(self) -> bool:
        return not self.in_flight and not self.kept


class Replicas:
    """Chooses replicas and keeps their connections."""

    def __init__(
        self,
        connect: Connect,
        outliers: Outliers | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.outliers = outliers or Outliers(_now)
        self._connect = connect
        self._seconds = connect_seconds
        self._uses: dict[str, _Use] = {}
        self._turn = 0
        self._sweeping: asyncio.TimerHandle | None = None

    def choose(self, replicas: Sequence[Replica], tried: Collection[str]) -> Replica | None:
        """Return the replica with the fewest requests; among equals, the one that waits longest.
        An ejected one is the last resort."""
        now = _now()
        out = self.outliers.out_of(replicas)

        def rank(replica: Replica) -> tuple[bool, bool, int, int]:
            use, is_out = self._uses.get(replica.id), replica.id in out
            if use is None:
                return (is_out, False, 0, 0)
            return (is_out, now < use.avoided_until, use.in_flight, use.last_used)

        untried = [replica for replica in replicas if replica.id not in tried]
        return min(untried, key=rank, default=None)

    def in_flight(self, replica_id: str) -> int:
        """Return how many requests the replica has; streams and WebSockets count."""
        use = self._uses.get(replica_id)
        return 0 if use is None else use.in_flight

    @contextmanager
    def using(self, replica: Replica) -> Iterator[None]:
        """Count a request of the replica."""
        use = self._use(replica.id)
        self._turn += 1
        use.in_flight += 1
        use.last_used = self._turn
        try:
            yield
        finally:
            use.in_flight -= 1
            self._schedule()

    def kept(self, replica: Replica) -> ReplicaConnection | None:
        """Return a kept connection that can carry a request."""
        use = self._uses.get(replica.id)
        while use is not None and use.kept:
            # The newest: its server is the least likely to have closed it by now.
            connection = use.kept.pop()
            if connection.can_be_reused:
                return connection
            connection.close()
        return None

    async def open(self, replica: Replica) -> ReplicaConnection:
        """Open a connection to the replica's port. Raises Unreachable.

        While many are being opened, it waits for its turn, and takes a connection that has come
        free meanwhile.
        """
        use = self._use(replica.id)
        silences = use.silences
        async with use.openings:
            if use.silences > silences:
                # Each of the others would wait as long again, one after the other.
                raise Unreachable(self._silence())
            return self.kept(replica) or await self._open(replica, use)

    async def _open(self, replica: Replica, use: _Use) -> ReplicaConnection:
        try:
            async with asyncio.timeout(self._seconds):
                stream = await self._connect(replica)
        except TimeoutError:
            use.silences += 1
            why = self._silence()
        except (LinkError, AgentUnavailable) as error:
            why = str(error)
        except AgentError as error:
            why = error.message
        else:
            return ReplicaConnection(stream)
        self._avoid(replica)
        raise Unreachable(why)

    def _silence(self) -> str:
        return f"its node did not answer within {self._seconds:g} s"

    def give_back(self, replica: Replica, connection: ReplicaConnection) -> None:
        """End an exchange: keep the connection if it can carry another request, else close it."""
        use = self._use(replica.id)
        if connection.finish() and len(use.kept) < MAX_KEPT:
            use.kept.append(connection)
            self._schedule()
        else:
            connection.close()

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for use in self._uses.values():
            for connection in use.kept:
                connection.close()
            use.kept.clear()

    def _avoid(self, replica: Replica) -> None:
        self._use(replica.id).avoided_until = _now() + AVOIDED_SECONDS
        self._schedule()

    def _use(self, replica_id: str) -> _Use:
        return self._uses.setdefault(replica_id, _Use())

    def _schedule(self) -> None:
        if self._sweeping is None:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(1.0, self._sweep)

    def _sweep(self) -> None:
        """Close unused connections, and forget replicas."""
        self._sweeping = None
        now = _now()
        for replica_id, use in list(self._uses.items()):
            for _ in range(len(use.kept)):
                connection = use.kept.popleft()
                if connection.can_be_reused:
                    use.kept.append(connection)
                else:
                    connection.close()
            if use.is_empty and now >= use.avoided_until:
                del self._uses[replica_id]
        if self._uses:
            self._schedule()


def _now() -> float:
    return asyncio.get_running_loop().time()
