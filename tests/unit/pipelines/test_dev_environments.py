"""The looks at a dev environment: what counts as its use, and the warning in its log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.attempts.inactivity import MAX_GAP, Look
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import InactivitySeen, Report
from controller.pipelines.performers.dev_environments import UseWatcher, look_at
from controller.traffic.statistics import GroupStatistics, Traffic
from fairlead.model.dev_environment import DevEnvironment, Ide
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.runner import JobMetrics
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.node import USED, FakeConnection
from tests.support.waiting import LONG
from tests.unit.pipelines.parts import NotedPipeline, context_of, placed

LIMIT = 0.04
DESK = DevEnvironment(ide=Ide.VSCODE, folder="/", inactivity_duration=LIMIT)
NOTES = DevEnvironment(ide=Ide.JUPYTER, folder="/")


class TellingPipeline(NotedPipeline):
    """`told` is set with the first report."""

    def __init__(self, *states: RunState) -> None:
        super().__init__(*states)
        self.told = asyncio.Event()

    def post(self, report: Report) -> None:
        super().post(report)
        self.told.set()


def used(connections: int, **relayed: int) -> JobMetrics:
    return replace(USED, connections=connections, relayed=relayed)


def test_a_connection_from_outside_is_a_use() -> None:
    nothing = GroupStatistics(NOW)

    assert look_at(DESK, used(0), nothing, NOW) == Look(at=NOW, in_use=False)
    assert look_at(DESK, used(1), nothing, NOW).in_use
    assert look_at(NOTES, used(1), nothing, NOW).in_use


def test_what_the_proxy_keeps_open_is_no_use_but_a_request_is() -> None:
    requests, kept = GroupStatistics(NOW), used(2, **{"8888": 2})
    assert look_at(NOTES, kept, requests, NOW) == Look(at=NOW, in_use=False)

    requests.begin(NOW + 1)
    assert look_at(NOTES, kept, requests, NOW + 2).in_use
    requests.end(NOW + 3, 2, failed=False)
    assert look_at(NOTES, kept, requests, NOW + 4) == Look(
        at=NOW + 4, in_use=False, requested_at=NOW + 3
    )


def test_a_forwarded_port_is_a_use_beside_an_ide_in_the_browser() -> None:
    metrics = used(2, **{"8888": 1, "6006": 1})
    assert look_at(NOTES, metrics, GroupStatistics(NOW), NOW).in_use


def desk(wanted: DevEnvironment = DESK, **seen: Any) -> RunState:
    """It runs, and `seen` is what was committed of it."""
    state = placed(AttemptStatus.RUNNING, **seen)
    policy = replace(state.run.policy, dev_environment=wanted)
    return replace(state, run=replace(state.run, policy=policy))


async def first_report(state: RunState) -> InactivitySeen:
    """Return what a controller that has just started reports first, with nobody there."""
    pipeline, clock, node = TellingPipeline(state), ManualClock(), FakeConnection()
    node.the_runner.used = used(0)
    watching = asyncio.create_task(
        UseWatcher(pipeline, Traffic(clock.now), clock)(context_of(state), node)
    )
    async with asyncio.timeout(LONG):
        await pipeline.told.wait()
    watching.cancel()
    report = pipeline.posted[0]
    assert isinstance(report, InactivitySeen)
    return report


@pytest.mark.parametrize(
    ("ide", "gap", "goes_on"),
    [
        (Ide.VSCODE, MAX_GAP, True),
        (Ide.VSCODE, MAX_GAP + 1, False),
        (Ide.JUPYTER, 1.0, False),
    ],
)
async def test_after_a_restart_the_count_goes_on_unless_a_use_may_be_unknown(
    ide: Ide, gap: float, goes_on: bool
) -> None:
    wanted = DevEnvironment(ide=ide, folder="/", inactivity_duration=3600.0)
    state = desk(wanted, inactive_since=NOW - 3600, inactive_seen_at=NOW - gap)

    report = await first_report(state)

    assert (report.at, report.idle_since) == (NOW, NOW - 3600 if goes_on else NOW)


async def test_one_that_is_not_in_use_is_reported_and_warned_before_its_end() -> None:
    state = desk()
    pipeline, clock, node = TellingPipeline(state), ManualClock(), FakeConnection()
    node.the_runner.used = used(0)
    watcher = UseWatcher(pipeline, Traffic(clock.now), clock)
    watching = asyncio.create_task(watcher(context_of(state), node))
    async with asyncio.timeout(LONG):
        await pipeline.told.wait()
        clock.time += LIMIT * 0.75
        await node.the_runner.noticed.wait()
    watching.cancel()

    first = pipeline.posted[0]
    assert isinstance(first, InactivitySeen)
    assert (first.at, first.idle_since) == (NOW, NOW)
    assert "without an SSH session" in node.the_runner.notices[0][1]
