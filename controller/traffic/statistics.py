"""Statistics: the requests of each replica group, in buckets of one second.

The proxy says when a request begins and ends; the autoscaler and `service show` read windows. A
drain waits until no request is in flight at its replica. Nothing is stored: after a restart a
window is covered again only when that much time has passed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container

import msgspec

from common.latencies import BOUNDS, latency_part, quantile
from controller.lifecycle.services.scaling import Load
from fairlead.wire.gateway import GroupCounts

MAX_WINDOW = 300
"""Seconds: the buckets that are kept."""


class Bucket(msgspec.Struct):
    """One second. `busy` is the sum of the times of all requests that were in flight in it."""

    second: int
    requests: int = 0
    errors: int = 0
    busy: float = 0.0
    latencies: list[int] | None = None


class WindowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a group within a window. `covered`: seconds for which there are counts."""

    covered: float
    requests: int
    errors: int
    rps: float | None
    in_flight: float | None
    latency_p50: float | None
    latency_p95: float | None

    @property
    def load(self) -> Load:
        return Load(
            covered=self.covered,
            rps=self.rps,
            in_flight=self.in_flight,
            latency_p95=self.latency_p95,
        )


class GroupStatistics:
    """The counts of one replica group; `since` is when counting began."""

    def __init__(self, now: float) -> None:
        self.since = now
        self._here = 0
        self._elsewhere: dict[str, int] = {}
        self.last_at: float | None = None
        """When a request last began or ended."""
        self._seen_at = now
        self._buckets: deque[Bucket] = deque(maxlen=MAX_WINDOW + 2)

    def begin(self, now: float, *, held: bool = False) -> None:
        """`held`: it waits for a replica, and counts as a request once it is sent to one."""
        self._advance(now)
        self._bucket(now).requests += not held
        self._here += 1
        self.last_at = now

    def end(self, now: float, seconds: float, *, failed: bool, counts: bool = True) -> None:
        """`counts` False: its duration says nothing about a replica."""
        self._advance(now)
        bucket = self._bucket(now)
        self._here -= 1
        self.last_at = now
        bucket.errors += failed
        if counts:
            if bucket.latencies is None:
                bucket.latencies = [0] * (len(BOUNDS) + 1)
            bucket.latencies[latency_part(seconds)] += 1

    def absorb(self, now: float, source: str, counts: GroupCounts) -> None:
        """Add what a gateway counted in the second that has just passed."""
        self._advance(now)
        bucket = self._bucket(now)
        bucket.requests += counts.requests
        bucket.errors += counts.errors
        bucket.busy += counts.busy
        if counts.requests or counts.in_flight or self._elsewhere.get(source):
            self.last_at = now
        self._elsewhere[source] = counts.in_flight
        for part, count in counts.latencies:
            if bucket.latencies is None:
                bucket.latencies = [0] * (len(BOUNDS) + 1)
            # An agent that was taken over may say any number, and -1 would count at the list's end.
            bucket.latencies[min(max(part, 0), len(BOUNDS))] += count

    def gap(self, now: float, source: str) -> None:
        """Begin anew: what this gateway does is not known at the moment."""
        self.since = now
        self._elsewhere.pop(source, None)

    @property
    def in_flight(self) -> int:
        """The requests in flight, here and at gateways; held ones count."""
        return self._here + sum(self._elsewhere.values())

    def window(self, seconds: float, now: float) -> WindowStatistics:
        """Return the counts of the last whole `seconds`."""
        self._advance(now)
        until = int(now)
        chosen = [one for one in self._buckets if until - seconds <= one.second < until]
        covered = min(seconds, max(0.0, until - self.since))
        requests = sum(one.requests for one in chosen)
        latencies = [0] * (len(BOUNDS) + 1)
        for one in chosen:
            for part, count in enumerate(one.latencies or ()):
                latencies[part] += count
        return WindowStatistics(
            covered=covered,
            requests=requests,
            errors=sum(one.errors for one in chosen),
            rps=requests / covered if covered else None,
            in_flight=sum(one.busy for one in chosen) / covered if covered else None,
            latency_p50=quantile(latencies, 0.5),
            latency_p95=quantile(latencies, 0.95),
        )

    def _bucket(self, now: float) -> Bucket:
        second = int(now)
        # Unix time may step back: then the newest second goes on until the clock has caught up.
        if not self._buckets or self._buckets[-1].second < second:
            self._buckets.append(Bucket(second))
        return self._buckets[-1]

    def _advance(self, now: float) -> None:
        """Count the requests in flight in each second up to now."""
        at = max(self._seen_at, now - MAX_WINDOW)
        while self._here and at < now:
            end = min(now, float(int(at) + 1))
            self._bucket(at).busy += self._here * (end - at)
            at = end
        self._seen_at = max(self._seen_at, now)


class Request:
    """One request that the proxy has taken. `end` may be called once."""

    def __init__(self, traffic: Traffic, group: GroupStatistics, attempt_id: str | None) -> None:
        self._traffic = traffic
        self._group = group
        self._attempt_id = attempt_id
        self._began = traffic.now()
        group.begin(self._began, held=attempt_id is None)
        if attempt_id is not None:
            traffic.enter(attempt_id)

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        """`is_stream`: its duration says nothing about the replica."""
        now = self._traffic.now()
        held = self._attempt_id is None
        self._group.end(now, now - self._began, failed=failed, counts=not (held or is_stream))
        if self._attempt_id is not None:
            self._traffic.leave(self._attempt_id)


Elsewhere = Callable[[str], Awaitable[None]]
"""Returns when no follower has a request in flight at this attempt, or sends it any."""


class Traffic:
    """The requests of all services. `now` gives Unix seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._groups: dict[tuple[str, str], GroupStatistics] = {}
        self._in_flight: dict[str, int] = {}
        self._idle: dict[str, list[asyncio.Future[None]]] = {}
        self._out_until: dict[str, float] = {}
        self.elsewhere: Elsewhere | None = None

    def group(self, run_id: str, group: str) -> GroupStatistics:
        """Return the counts of this group; counting begins with the first call."""
        key = (run_id, group)
        if key not in self._groups:
            self._groups[key] = GroupStatistics(self.now())
        return self._groups[key]

    def begin(self, run_id: str, group: str, attempt_id: str | None) -> Request:
        """Count a request to this replica; `attempt_id` None: it is held until there is one."""
        return Request(self, self.group(run_id, group), attempt_id)

    def keep(self, run_ids: Container[str]) -> None:
        """Forget the counts of all other runs."""
        for key in [key for key in self._groups if key[0] not in run_ids]:
            del self._groups[key]

    def in_flight(self, attempt_id: str) -> int:
        return self._in_flight.get(attempt_id, 0)

    def enter(self, attempt_id: str) -> None:
        self._in_flight[attempt_id] = self.in_flight(attempt_id) + 1

    def leave(self, attempt_id: str) -> None:
        left = self.in_flight(attempt_id) - 1
        if left > 0:
            self._in_flight[attempt_id] = left
            return
        self._in_flight.pop(attempt_id, None)
        # A drain that gave up has cancelled its wait, which stays in the list.
        for waiter in self._idle.pop(attempt_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def ejected(self, attempt_id: str, seconds: float) -> None:
        """The proxy or a gateway sends no requests to this replica for that time."""
        now = self.now()
        self._out_until = {one: at for one, at in self._out_until.items() if now < at}
        self._out_until[attempt_id] = now + seconds

    def ejected_until(self, attempt_id: str) -> float | None:
        """Return when the replica gets requests again (Unix seconds); None: it does now."""
        until = self._out_until.get(attempt_id, 0.0)
        return until if self.now() < until else None

    async def idle(self, attempt_id: str) -> None:
        """Wait until no request is in flight at this replica, here or at followers."""
        if self.elsewhere is not None:
            await self.elsewhere(attempt_id)
        while self.in_flight(attempt_id):
            waiter = asyncio.get_running_loop().create_future()
            self._idle.setdefault(attempt_id, []).append(waiter)
            await waiter
