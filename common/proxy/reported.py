"""The counts of requests, as a gateway or a follower reports them to the controller that leads."""

from __future__ import annotations

from collections.abc import Callable

from common.latencies import latency_part
from common.proxy.view import Replica, Service
from fairlead.wire.gateway import GroupCounts


class _Group:
    """The counts of one replica group since they were last taken."""

    def __init__(self, now: float) -> None:
        self.requests = 0
        self.errors = 0
        self.in_flight = 0
        self.elsewhere: dict[str, int] = {}
        self.busy = 0.0
        self.latencies: dict[int, int] = {}
        self._at = now

    def change(self, now: float, by: int) -> None:
        self.advance(now)
        self.in_flight += by

    def advance(self, now: float) -> None:
        self.busy += self.all_in_flight * (now - self._at)
        self._at = now

    @property
    def all_in_flight(self) -> int:
        return self.in_flight + sum(self.elsewhere.values())

    def count_latency(self, seconds: float) -> None:
        part = latency_part(seconds)
        self.latencies[part] = self.latencies.get(part, 0) + 1


class _Request:
    def __init__(self, traffic: ReportedTraffic, group: _Group, replica: str | None) -> None:
        self._traffic = traffic
        self._group = group
        self._replica = replica
        self._began = traffic.now()
        group.change(self._began, +1)
        if replica is not None:
            group.requests += 1
            traffic.enter(replica)

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        now = self._traffic.now()
        self._group.change(now, -1)
        self._group.errors += failed
        if self._replica is not None:
            if not is_stream:
                self._group.count_latency(now - self._began)
            self._traffic.leave(self._replica)


class ReportedTraffic:
    """Counts requests for the controller (`common.proxy.view.Traffic`). `now`: seconds that
    only grow. `emptied` is called when the last request of a replica has ended."""

    def __init__(self, now: Callable[[], float], emptied: Callable[[str], None]) -> None:
        self.now = now
        self.in_flight: dict[str, int] = {}
        self._emptied = emptied
        self._groups: dict[tuple[str, str], _Group] = {}

    def begin(self, service: Service, replica: Replica | None) -> _Request:
        name = service.groups[0] if replica is None else replica.group
        group = self._group(service.run_id, name)
        return _Request(self, group, None if replica is None else replica.id)

    def ejected(self, replica: Replica, seconds: float) -> None:
        """The counts of each second say which replicas are ejected (`Counts`)."""

    def took_elsewhere(self, run_id: str, name: str, seconds: float) -> None:
        """Count the time of a request that the agent did not carry."""
        self._group(run_id, name).count_latency(seconds)

    def count_elsewhere(
        self, run_id: str, name: str, replica: str, *, requests: int, errors: int, in_flight: int
    ) -> None:
        """Count requests to a replica that the agent did not carry: those since the last call, and
        those that are in flight now."""
        group = self._group(run_id, name)
        group.requests += requests
        group.errors += errors
        group.advance(self.now())
        group.elsewhere.pop(replica, None)
        if in_flight:
            group.elsewhere[replica] = in_flight

    def _group(self, run_id: str, name: str) -> _Group:
        return self._groups.setdefault((run_id, name), _Group(self.now()))

    def enter(self, replica: str) -> None:
        self.in_flight[replica] = self.in_flight.get(replica, 0) + 1

    def leave(self, replica: str) -> None:
        self.in_flight[replica] -= 1
        if not self.in_flight[replica]:
            del self.in_flight[replica]
            self._emptied(replica)

    def take(self) -> tuple[GroupCounts, ...]:
        """Return the counts since the last call, of groups that had any."""
        now, taken = self.now(), []
        for (run_id, name), group in list(self._groups.items()):
            group.advance(now)
            taken.append(
                GroupCounts(
                    run_id=run_id,
                    group=name,
                    requests=group.requests,
                    errors=group.errors,
                    busy=group.busy,
                    in_flight=group.all_in_flight,
                    latencies=tuple(sorted(group.latencies.items())),
                )
            )
            group.requests = group.errors = 0
            group.busy, group.latencies = 0.0, {}
            if not group.all_in_flight:
                del self._groups[(run_id, name)]
        return tuple(taken)
