"""A stream whose writer is woken all the time still has its heartbeats."""

from __future__ import annotations

from controller.aio import Flag
from controller.api.http.streams import Heartbeat


async def test_a_line_is_due_however_often_the_writer_is_woken() -> None:
    heartbeat, woken = Heartbeat(0.0), Flag()
    woken.set()
    assert not await heartbeat.wait(woken)
    heartbeat = Heartbeat(3600.0)
    assert await heartbeat.wait(woken)
    assert not heartbeat.is_due


async def test_a_line_is_due_when_nothing_wakes_the_writer() -> None:
    assert not await Heartbeat(0.001).wait(Flag())
