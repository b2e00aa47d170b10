"""A rented machine that nobody looks after ends itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from shim import daemon
from shim.errors import StartError
from shim.leash import Leash
from shim.options import leash
from tests.support.waiting import eventually
from tests.unit.shim.parts import Node


class Machine:
    def __init__(self) -> None:
        self.silent_for = 0.0
        self.has_tasks = False
        self.ended = 0
        self.fails = False
        self.leash = Leash(7200.0, lambda: self.silent_for, lambda: self.has_tasks, self._end)

    def _end(self) -> None:
        if self.fails:
            raise OSError("systemctl: not found")
        self.ended += 1


async def test_a_machine_without_task_and_controller_powers_off_after_its_leash() -> None:
    machine = Machine()
    machine.silent_for = 7190.0
    assert await machine.leash.look() == 10.0
    assert machine.ended == 0
    machine.silent_for = 7200.0
    await machine.leash.look()
    assert machine.ended == 1


async def test_a_controller_that_is_heard_keeps_the_machine() -> None:
    machine = Machine()
    assert await machine.leash.look() == 60.0
    assert machine.ended == 0


async def test_a_machine_with_a_task_stays() -> None:
    machine = Machine()
    machine.silent_for, machine.has_tasks = 1e6, True
    assert await machine.leash.look() == 60.0
    assert machine.ended == 0


async def test_an_end_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.silent_for, machine.fails = 9000.0, True
    with caplog.at_level(logging.ERROR):
        assert await machine.leash.look() == 60.0
    assert "could not be powered off: systemctl: not found" in caplog.text
    machine.fails = False
    await machine.leash.look()
    assert machine.ended == 1


def test_a_leash_is_at_least_a_minute() -> None:
    assert leash(None) is None
    assert leash(60.0) == 60.0
    with pytest.raises(StartError, match="--leash 5: expected at least 60"):
        leash(5.0)


@pytest.fixture
def ends() -> Iterator[list[str]]:
    """The ends that a shim asks for; nothing here may power a machine off."""
    found: list[str] = []

    def of_test(seconds: float, *conditions: object) -> Leash:
        silent_for, has_tasks = conditions
        return Leash(seconds, silent_for, has_tasks, lambda: found.append("off"))  # type: ignore[arg-type]

    with mock.patch.object(daemon, "Leash", of_test):
        yield found


async def test_a_shim_with_a_leash_keeps_it(tmp_path: Path, ends: list[str]) -> None:
    node = Node(tmp_path)
    node.settings = msgspec.structs.replace(node.settings, leash=0.0)
    async with node.shim():
        await eventually(lambda: ends)
    assert set(ends) == {"off"}
