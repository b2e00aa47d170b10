"""The lab's own promises: what the tests of gangs stand on."""

from __future__ import annotations

import pytest

from tests.e2e.gangs.lab import PATIENCE, GangLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_a_cut_machine_is_not_reached_and_goes_on(gang_lab: GangLab) -> None:
    machine = gang_lab.machines[4]
    machine.cut()
    assert not machine.sshd.greets()
    assert machine.dockerd.docker("info", "--format", "{{.ServerVersion}}")
    machine.mend()
    wait_until(lambda: machine.sshd.greets(), what="the machine to answer")


def test_a_machine_that_was_switched_off_comes_back(gang_lab: GangLab) -> None:
    machine = gang_lab.machines[4]
    machine.switch_off()
    assert not machine.sshd.greets()
    gang_lab.wait_for_node(lambda node: node["status"] != "connected", machine.name, PATIENCE)
    machine.switch_on()
    gang_lab.wait_for_node(lambda node: node["status"] == "connected", machine.name, PATIENCE)
    assert machine.dockerd.docker("images", "-q", gang_lab.image)
