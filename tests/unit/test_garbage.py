"""What a lead has left in memory is freed, some time after its end and not before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from controller.daemon import garbage
from controller.daemon.garbage import Garbage
from tests.support.waiting import eventually


class ALead:
    def __init__(self) -> None:
        self.itself = self


def _is_freed(lead: weakref.ref[ALead]) -> bool:
    return lead() is None


@pytest.fixture(autouse=True)
def only_when_it_is_told() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_lead_that_is_over_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    collector = Garbage()
    for _ in range(2):
        lead = weakref.ref(ALead())
        collector.lead_ended()
        assert lead() is not None, "the next leader takes over first"
        await eventually(partial(_is_freed, lead))


async def test_leads_that_end_together_are_freed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    count = 0

    def collect() -> None:
        nonlocal count
        count += 1

    monkeypatch.setattr(gc, "collect", collect)
    collector = Garbage()
    for _ in range(3):
        collector.lead_ended()
    await eventually(lambda: count > 0)
    collector.lead_ended()
    await eventually(lambda: count > 1)
    assert count == 2


async def test_a_lead_that_begins_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the first of the leads ended long ago."""
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    monkeypatch.setattr(garbage, "MAX_SECONDS", 0.0)
    leading, following = Garbage(), Garbage()
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(len(collected)))
    leading.lead_ended()
    leading.lead_begins()
    following.lead_begins()
    following.lead_began()  # it has no garbage
    # Timers run in order.
    following.lead_ended()
    await eventually(lambda: bool(collected))
    assert collected == [0]
    leading.lead_began()
    await eventually(lambda: len(collected) > 1)


async def test_what_waited_for_a_lead_is_freed_when_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    collector, lead = Garbage(), weakref.ref(ALead())
    collector.lead_ended()
    collector.lead_begins()
    collector.lead_ended()
    await eventually(partial(_is_freed, lead))


async def test_leads_one_after_the_other_delay_it_for_some_time_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 1000.0)
    monkeypatch.setattr(garbage, "MAX_SECONDS", 1000.0)
    collector = Garbage()
    lead = weakref.ref(ALead())
    collector.lead_ended()
    collector.lead_begins()
    collector.lead_began()
    monkeypatch.setattr(garbage, "MAX_SECONDS", 0.0)
    collector.lead_ended()
    await eventually(partial(_is_freed, lead))


async def test_nothing_is_collected_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    closed, other = Garbage(), Garbage()
    kept = weakref.ref(ALead())
    closed.lead_ended()
    closed.close()
    # Timers run in order.
    ran = []
    monkeypatch.setattr(gc, "collect", lambda: ran.append("other"))
    other.lead_ended()
    await eventually(lambda: bool(ran))
    assert ran == ["other"]
    assert kept() is not None
