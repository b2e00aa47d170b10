"""A node's states through silence (docs/rules.md 7), each rule by its words."""

from __future__ import annotations

import pytest

from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import NodeStatus
from controller.nodes.silence import Silence, silent_before
from tests.doubles.clock import NOW, ManualClock
from tests.unit.pipelines.parts import a_node


class Seconds:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


def silence(seconds: Seconds, before: float = 0.0) -> Silence:
    return Silence(seconds, NodeFailure(), before)


def fail(one: Silence, probes: int) -> None:
    for _ in range(probes):
        one.probe_failed()


@pytest.mark.parametrize(
    ("probes", "after", "status"),
    [
        (2, 1000.0, NodeStatus.CONNECTING),
        (3, 29.0, NodeStatus.CONNECTING),
        (3, 30.0, NodeStatus.UNREACHABLE),
        (9, 309.0, NodeStatus.UNREACHABLE),
        (9, 310.0, NodeStatus.LOST),
    ],
)
def test_unreachable_after_three_failed_probes_and_thirty_seconds_lost_after_five_minutes(
    seconds: Seconds, probes: int, after: float, status: NodeStatus
) -> None:
    one = silence(seconds)
    seconds.now += after
    fail(one, probes)
    assert one.verdict(NodeStatus.CONNECTED) is status


def test_a_link_that_is_cut_has_its_full_time_though_its_last_byte_came_earlier(
    seconds: Seconds,
) -> None:
    one = silence(seconds)
    seconds.now += NodeFailure().probe_every
    cut_at = seconds.now
    fail(one, 9)
    seconds.now = cut_at + NodeFailure().lost_after - 0.1
    assert one.verdict(NodeStatus.UNREACHABLE) is NodeStatus.UNREACHABLE
    seconds.now = cut_at + NodeFailure().lost_after
    assert one.verdict(NodeStatus.UNREACHABLE) is NodeStatus.LOST


def test_a_probe_is_due_when_a_heartbeat_was_missed(seconds: Seconds) -> None:
    one = silence(seconds)
    seconds.now += 10.5
    assert one.left == pytest.approx(0.5)
    one.heard()
    assert one.left == pytest.approx(11.0)


def test_any_byte_received_is_life(seconds: Seconds) -> None:
    one = silence(seconds)
    fail(one, 5)
    seconds.now += 299.0
    one.heard(seconds.now - 1.0)
    assert one.seconds == 1.0
    seconds.now += 200.0
    fail(one, 2)
    assert one.verdict(NodeStatus.CONNECTING) is NodeStatus.CONNECTING


def test_the_last_byte_told_again_is_no_sign_of_life(seconds: Seconds) -> None:
    one = silence(seconds)
    one.heard(seconds.now + 1.0)
    last, seconds.now = seconds.now + 1.0, seconds.now + 31.0
    for _ in range(3):
        one.probe_failed()
        one.heard(last)
    assert one.verdict(NodeStatus.CONNECTED) is NodeStatus.UNREACHABLE


def test_an_older_byte_takes_nothing_back(seconds: Seconds) -> None:
    one = silence(seconds)
    one.heard(seconds.now - 100.0)
    assert one.seconds == 0.0


def test_a_node_stays_unreachable_or_lost_until_it_is_connected(seconds: Seconds) -> None:
    one = silence(seconds)
    assert one.verdict(NodeStatus.UNREACHABLE) is NodeStatus.UNREACHABLE
    assert one.verdict(NodeStatus.LOST) is NodeStatus.LOST


def test_silence_from_before_a_restart_counts_but_the_new_controller_looks_for_itself(
    seconds: Seconds,
) -> None:
    one = silence(seconds, before=290.0)
    seconds.now += 20.0
    fail(one, 3)
    assert one.verdict(NodeStatus.UNREACHABLE) is NodeStatus.UNREACHABLE
    seconds.now += 10.0
    assert one.verdict(NodeStatus.UNREACHABLE) is NodeStatus.LOST


def test_a_node_that_answered_until_the_controller_ended_was_not_silent() -> None:
    connected = a_node(last_seen_at=NOW - 9999.0)
    assert silent_before(connected, ManualClock().now()) == 0.0


def test_a_node_that_was_silent_when_the_controller_ended_still_is() -> None:
    silent = a_node(status=NodeStatus.UNREACHABLE, last_seen_at=NOW - 120.0)
    assert silent_before(silent, ManualClock().now()) == 120.0
