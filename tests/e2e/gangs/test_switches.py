"""A gang of four, one of them reserved, on four machines with a fifth to spare: what `inspect`
tells after a rank has failed, a node was cut off or switched off, and the controller was killed
meanwhile, is what docs/rules.md 5 says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.gangs.lab import PATIENCE, GangLab
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


def is_stopped(machine: Machine, attempt: Any) -> bool:
    return machine.container(attempt["id"]) == ""


def test_a_rank_that_fails_begins_a_new_incarnation(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "failing"
    with a_gang(lab, name) as first:
        lab.end(first[1], 7)
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        assert switches(lab, name) == [("job_failed", first[1]["id"])]
        assert ends(lab, name, 1) == {
            0: "incarnation_changed",
            1: "container_exited_with_error",
            2: "incarnation_changed",
            3: "incarnation_changed",
        }
        assert_the_reserved_job_took_over(lab, name, first, second, lost=1)
        told = [lab.environment(attempt) for attempt in second]
        assert {env["FAIRLEAD_INCARNATION_NUMBER"] for env in told} == {"2"}
        assert told[3]["FAIRLEAD_GANG_RANK"] == "1"
        assert "FAIRLEAD_GANG_RANK" not in told[1]
        ips = [lab.machine(second[cookie]["node"]).address for cookie in (0, 3, 2)]
        assert told[0]["FAIRLEAD_MASTER_NODE_IP"] == ips[0]
        hosts = lab.inside(second[0], "cat", told[0]["FAIRLEAD_MPI_HOSTFILE"])
        assert hosts.splitlines() == [f"{ip} slots=1" for ip in ips]


def test_a_reserved_job_that_fails_is_replaced_without_a_switch(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "spare"
    with a_gang(lab, name) as first:
        lab.end(first[3], 1)
        wait_until(lambda: lab.last(name, 3)["id"] != first[3]["id"], what="another attempt")
        second = lab.wait_for_incarnation(name, 1, COOKIES)
        assert [one["id"] for one in second[:3]] == [one["id"] for one in first[:3]]
        assert switches(lab, name) == []


def test_a_node_that_is_cut_off_for_long_loses_its_rank_to_the_reserved_job(
    gang_lab: GangLab,
) -> None:
    lab, name = gang_lab, "cut"
    with a_gang(lab, name) as first:
        machine = lab.machine(first[2]["node"])
        machine.cut()
        lab.wait_for_node(lambda node: node["status"] == "unreachable", machine.name, PATIENCE)
        assert [lab.last(name, cookie)["id"] for cookie in COOKIES] == [one["id"] for one in first]
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        assert switches(lab, name) == [("job_aborted", first[2]["id"])]
        assert ends(lab, name, 1)[2] == "instance_unreachable"
        assert_the_reserved_job_took_over(lab, name, first, second, lost=2)
        assert not is_stopped(machine, first[2])
        machine.mend()
        lab.wait_for_node(lambda node: node["status"] == "connected", machine.name, PATIENCE)
        wait_until(lambda: is_stopped(machine, first[2]), what="the stale task to be stopped")
        assert [lab.last(name, cookie)["id"] for cookie in COOKIES] == [one["id"] for one in second]


def test_a_short_cut_changes_nothing(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "short-cut"
    with a_gang(lab, name) as first:
        machine = lab.machine(first[0]["node"])
        machine.cut()
        lab.wait_for_node(lambda node: node["status"] != "connected", machine.name, PATIENCE)
        machine.mend()
        lab.wait_for_node(lambda node: node["status"] == "connected", machine.name, PATIENCE)
        assert [lab.last(name, cookie)["id"] for cookie in COOKIES] == [one["id"] for one in first]
        assert switches(lab, name) == []


def test_a_node_is_switched_off_while_the_controller_is_killed(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "dark"
    with a_gang(lab, name) as first:
        machine = lab.machine(first[0]["node"])
        lab.controller.kill9()
        machine.switch_off()
        lab.controller.start()
        assert [lab.last(name, cookie)["id"] for cookie in COOKIES] == [one["id"] for one in first]
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        lab.controller.restart()
        assert switches(lab, name) == [("job_aborted", first[0]["id"])]
        assert ends(lab, name, 1)[0] == "instance_unreachable"
        assert_the_reserved_job_took_over(lab, name, first, second, lost=0)
        machine.switch_on()
        lab.wait_for_node(lambda node: node["status"] == "connected", machine.name, PATIENCE)
        assert [lab.last(name, cookie)["id"] for cookie in COOKIES] == [one["id"] for one in second]


def test_the_controller_is_killed_in_the_middle_of_a_switch(gang_lab: GangLab) -> None:
    lab, name = gang_lab, "interrupted"
    with a_gang(lab, name) as first:
        lab.end(first[1], 7)
        wait_until(lambda: switches(lab, name), what="the switch to be decided")
        lab.controller.restart()
        second = lab.wait_for_incarnation(name, 2, COOKIES)
        assert switches(lab, name) == [("job_failed", first[1]["id"])]
        assert_the_reserved_job_took_over(lab, name, first, second, lost=1)
