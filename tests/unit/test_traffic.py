"""The counts of a replica group: what a window holds, what is kept, when a replica is idle."""

from __future__ import annotations

import asyncio

import pytest

from controller.traffic.statistics import MAX_WINDOW, GroupStatistics, Traffic
from fairlead.wire.gateway import GroupCounts


class Clock:
    """Unix seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def traffic(clock: Clock) -> Traffic:
    return Traffic(clock)


def test_a_window_holds_its_last_whole_seconds(traffic: Traffic, clock: Clock) -> None:
    group = traffic.group("r", "main")
    for second, seconds, failed in ((0, 0.1, False), (5, 0.1, True), (9, 0.4, False)):
        clock.now = 1000.0 + second
        request = traffic.begin("r", "main", "a")
        clock.now += seconds
        request.end(failed=failed)
    clock.now = 1010.5
    seen = group.window(6, clock.now)
    assert (seen.covered, seen.requests, seen.errors) == (6, 2, 1)
    assert seen.rps == pytest.approx(2 / 6)
    assert seen.in_flight == pytest.approx(0.5 / 6)
    assert seen.latency_p50 == pytest.approx(0.1, rel=0.25)
    assert seen.latency_p95 == pytest.approx(0.4, rel=0.25)


def test_a_window_says_how_much_of_it_was_counted(traffic: Traffic, clock: Clock) -> None:
    group = traffic.group("r", "main")
    none = group.window(60, clock.now)
    assert (none.covered, none.rps, none.in_flight, none.latency_p50) == (0, None, None, None)
    clock.now = 1020.9
    assert group.window(60, clock.now).covered == 20
    assert group.window(60, clock.now).rps == 0
    clock.now = 2000.0
    assert group.window(60, clock.now).covered == 60


def test_a_request_that_goes_on_counts_in_each_second(traffic: Traffic, clock: Clock) -> None:
    group = traffic.group("r", "main")
    traffic.begin("r", "main", "a")
    traffic.begin("r", "main", "a")
    clock.now = 1010.0
    assert (group.window(10, clock.now).in_flight, group.in_flight) == (2.0, 2)
    clock.now = 1010.0 + 3 * MAX_WINDOW
    assert group.window(MAX_WINDOW, clock.now).in_flight == pytest.approx(2.0)


def test_a_stream_says_nothing_about_latency(traffic: Traffic, clock: Clock) -> None:
    request = traffic.begin("r", "main", "a")
    clock.now = 1100.0
    request.end(is_stream=True)
    clock.now = 1101.0
    seen = traffic.group("r", "main").window(300, clock.now)
    assert (seen.requests, seen.latency_p95) == (1, None)


def test_a_held_request_counts_once(traffic: Traffic, clock: Clock) -> None:
    held = traffic.begin("r", "main", None)
    assert traffic.group("r", "main").in_flight == 1
    held.end()
    traffic.begin("r", "main", "a").end()
    clock.now = 1001.0
    assert traffic.group("r", "main").window(60, clock.now).requests == 1


def test_a_request_is_in_flight_while_it_is_held(traffic: Traffic, clock: Clock) -> None:
    traffic.begin("r", "main", None)
    clock.now = 1700.0
    load = traffic.group("r", "main").window(60, clock.now).load
    assert (load.rps, round(load.in_flight or 0.0, 3)) == (0.0, 1.0)


def test_the_counts_of_ended_runs_are_forgotten(traffic: Traffic, clock: Clock) -> None:
    kept, gone = traffic.group("kept", "main"), traffic.group("gone", "main")
    traffic.keep({"kept"})
    clock.now = 1010.0
    assert traffic.group("kept", "main") is kept
    assert traffic.group("gone", "main") is not gone
    assert traffic.group("gone", "main").since == 1010.0


async def test_a_drain_waits_for_the_last_request_of_its_replica(traffic: Traffic) -> None:
    await traffic.idle("a")
    first, second = traffic.begin("r", "main", "a"), traffic.begin("r", "main", "a")
    other = traffic.begin("r", "main", "b")
    drained = asyncio.ensure_future(traffic.idle("a"))
    first.end()
    await asyncio.sleep(0)
    assert not drained.done()
    second.end()
    await drained
    assert (traffic.in_flight("a"), traffic.in_flight("b")) == (0, 1)
    other.end()


def test_what_a_gateway_counted_adds_to_the_own_requests() -> None:
    counts = GroupStatistics(100.0)
    told = GroupCounts(
        run_id="r",
        group="main",
        requests=6,
        errors=1,
        busy=2.0,
        in_flight=3,
        latencies=((10, 5), (20, 1)),
    )
    for second in range(101, 104):
        counts.absorb(second + 0.5, "main", told)
    seen = counts.window(10.0, 104.0)

    assert (seen.requests, seen.errors, seen.rps, counts.in_flight) == (18, 3, 4.5, 3)
    assert (seen.in_flight, seen.covered) == (1.5, 4.0)


def test_a_gap_of_a_gateway_begins_the_window_anew() -> None:
    counts = GroupStatistics(100.0)
    told = GroupCounts(run_id="r", group="main", requests=6, in_flight=3)
    counts.absorb(101.5, "main", told)
    counts.gap(110.0, "main")

    assert (counts.in_flight, counts.window(30.0, 112.0).covered) == (0, 2.0)


def test_an_ejected_replica_is_known_until_it_gets_requests_again(
    traffic: Traffic, clock: Clock
) -> None:
    traffic.ejected("a", 30.0)
    assert (traffic.ejected_until("a"), traffic.ejected_until("b")) == (1030.0, None)
    clock.now = 1030.0
    assert traffic.ejected_until("a") is None
