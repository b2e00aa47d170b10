"""A gang's fate when its machine is started anew, or the machine's Docker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from fairlead.wire.shim import TaskInfo, TaskStatus
from shim.client import ShimClient
from tests.e2e.gangs.lab import GangLab
from tests.e2e.gangs.story import (
    COOKIES,
    a_gang,
    assert_the_reserved_job_took_over,
    ends,
    switches,
)
from tests.support.machines import Machine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_a_reboot_ends_the_rank_there_at_once_and_its_gang_switches(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "rebooting"
    with a_gang(lab, name) as first:
        machine = lab.machine(first[1]["node"])
        machine.reboot()
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        assert switches(lab, name) == [("job_aborted", first[1]["id"])]
        assert ends(lab, name, 1)[1] == "instance_unreachable"
        (told,) = [one for one in lab.job(name, 1)["attempts"] if one["id"] == first[1]["id"]]
        assert told["message"] == "the node was restarted"
        assert_the_reserved_job_took_over(lab, name, first, second, lost=1)
        wait_until(lambda: not machine.container(first[1]["id"]), what="the dead container to go")


def test_a_task_that_was_not_begun_before_a_reboot_is_not_begun_after_it(
    gang_lab: GangLab,
) -> None:
    lab, name = gang_lab, "unbegun"
    machine = lab.machines[0]
    with lab.only(1), a_silent_registry(machine) as registry:
        lab.submit(name, image=f"{registry}/never:1", commands=["true"])
        lab.wait_for_attempt(name, "pulling")
        (attempt,) = lab.attempts(name)
        lab.controller.kill9()
        machine.reboot()
        task = asyncio.run(the_task(machine, attempt["id"]))
        assert (task.status, task.reason) == (TaskStatus.TERMINATED, "instance_unreachable")
        assert task.message == "the node was restarted before the task was started"
        lab.controller.start()
        lab.wait_for_attempt(name, "pulling", number=1)
        assert lab.attempts(name)[0]["termination_reason"] == "instance_unreachable"
        lab.cli("stop", name, "--abort").succeeded()
        lab.wait_for(name)


def test_docker_is_restarted_under_a_rank(gang_lab: GangLab) -> None:
    """Without live-restore its containers end with it, which is no failure of theirs."""
    lab, name = gang_lab, "engine"
    with a_gang(lab, name) as first:
        machine = lab.machine(first[2]["node"])
        with without_live_restore(machine):
            machine.dockerd.restart()
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        assert switches(lab, name) == [("job_aborted", first[2]["id"])]
        assert ends(lab, name, 1)[2] == "instance_unreachable"
        assert_the_reserved_job_took_over(lab, name, first, second, lost=2)
        assert machine.container(first[2]["id"]) == ""
    assert [m.dockerd.docker("ps", "-aq") for m in lab.machines] == [""] * len(lab.machines)


@contextmanager
def without_live_restore(machine: Machine) -> Iterator[None]:
    machine.dockerd.live_restore(on=False)
    try:
        yield
    finally:
        machine.dockerd.live_restore(on=True)


@contextmanager
def a_silent_registry(machine: Machine) -> Iterator[str]:
    """Its address, for who pulls on the machine: it takes connections and never says a word."""
    ours = machine.address.rpartition(".")[0] + ".254"
    with socket.create_server((ours, 0)) as server:
        yield f"{ours}:{server.getsockname()[1]}"


async def the_task(machine: Machine, task_id: str) -> TaskInfo:
    connector = aiohttp.UnixConnector(str(machine.shim.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        return await ShimClient(session).task(task_id)
