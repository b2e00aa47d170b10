"""How a container ended while nobody listened, from what its engine remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shim.engines.base import EngineUnavailable
from shim.engines.docker.containers import exit_code_of
from shim.engines.docker.events import REMEMBERED, Past, judge, past_of
from shim.engines.podman import PODMAN
from shim.errors import EngineError

OURS, OTHER = "c" * 64, "d" * 64


def event(action: str, container_id: str = OURS, **attributes: str) -> dict[str, Any]:
    return {
        "Type": "container",
        "Action": action,
        "Actor": {"ID": container_id, "Attributes": attributes},
    }


DIED = event("die", exitCode="3")
TERM = event("kill", signal="15")
BEFORE = [event("start", OTHER), event("die", OTHER)]
FULL = [event("exec_start", OTHER)] * REMEMBERED


@pytest.mark.parametrize(
    ("events", "past"),
    [
        ([*BEFORE, DIED], Past()),
        ([*BEFORE, TERM, DIED], Past(stopped=True)),
        ([event("kill", signal="10"), DIED], Past()),
        ([event("kill", OTHER, signal="15"), DIED], Past()),
        (BEFORE, Past(unseen=True, remembered=False)),
        ([], Past(unseen=True, remembered=False)),
        (FULL, Past()),
        ([*FULL, DIED], Past()),
    ],
)
def test_an_event_that_the_engine_does_not_remember_lies_before_its_life(
    events: list[dict[str, Any]], past: Past
) -> None:
    assert judge(events, OURS, live_restore=False) == past


def test_an_engine_with_live_restore_takes_nobody_along() -> None:
    assert judge(BEFORE, OURS, live_restore=True) == Past(remembered=False)


@pytest.mark.parametrize(
    ("code", "past", "told"),
    [
        (255, Past(remembered=False), None),
        (255, Past(), 255),
        (4, Past(remembered=False), 4),
    ],
)
def test_the_code_of_a_container_that_containerd_forgot_is_unknown(
    code: int, past: Past, told: int | None
) -> None:
    assert exit_code_of({"ExitCode": code}, past) == told


class Api:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events
        self.asked: dict[str, Any] = {}

    def info(self) -> dict[str, Any]:
        return {"SystemTime": "2026-11-21T17:21:28.639329647Z", "LiveRestoreEnabled": False}

    def events(self, **asked: Any) -> Any:
        self.asked = asked
        return iter(self._events)


async def call(act: Callable[[], Any]) -> Any:
    return act()


async def test_it_is_asked_for_all_until_now_by_its_own_clock() -> None:
    """Later by the node's clock than by the engine's would be waiting for what is to come."""
    api = Api([DIED])
    assert await past_of(call, api, OURS) == Past()
    assert api.asked == {"decode": True, "since": 0, "until": "1795281688.639329"}


async def test_an_engine_that_refuses_to_tell_leaves_the_end_as_it_is() -> None:
    async def refuse(act: Callable[[], Any]) -> Any:
        raise EngineError("no")

    assert await past_of(refuse, Api([]), OURS) == Past()


async def test_an_engine_that_is_away_is_asked_again_later() -> None:
    async def away(act: Callable[[], Any]) -> Any:
        raise EngineUnavailable("away")

    with pytest.raises(EngineUnavailable):
        await past_of(away, Api([]), OURS)


def test_where_a_signal_has_no_name_each_signal_ends_a_container() -> None:
    """As in Podman's events."""
    events = [event("kill"), DIED]
    assert judge(events, OURS, live_restore=False) == Past()
    assert judge(events, OURS, live_restore=False, names_signals=False) == Past(stopped=True)


async def test_podman_is_asked_for_the_events_of_the_container_alone() -> None:
    api = Api([DIED])
    assert await past_of(call, api, OURS, PODMAN) == Past()
    assert api.asked["filters"] == {"container": OURS}
