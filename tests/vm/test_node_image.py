"""Machines that boot from the image are nodes: what an operator and a job rely on, for real."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until
from tests.vm.conftest import (
    Figures,
    MachineFactory,
    boot_node,
    import_busybox,
    wait_until_ready,
)
from tests.vm.jobs import Jobs
from tests.vm.machine import VirtualMachine


def test_a_booted_node_is_as_its_user_data_says(
    node: VirtualMachine, controller: ControllerProcess, figures: Figures
) -> None:
    assert node.run("hostname") == "vm1\n"
    assert node.attempt("id", "packer").returncode == 1
    findings = controller.cli("node", "doctor", "vm1", "--json").json["findings"]
    assert [found for found in findings if found["level"] == "error"] == []
    shown = node.run("systemctl", "show", "-p", "MemoryCurrent", "--value", "fairlead-shim")
    figures.note("bytes of memory of the shim's unit", int(shown))
    score = node.run("systemd-analyze", "security", "--no-pager", "fairlead-shim.service")
    figures.note("systemd-analyze security, shim", score.strip().splitlines()[-1])


def test_a_container_may_lock_memory_and_be_privileged(node: VirtualMachine, jobs: Jobs) -> None:
    said = jobs.follow("plain", "echo hello from a container", "ulimit -l")
    assert "hello from a container" in said
    assert "unlimited" not in said
    assert "unlimited" in jobs.follow("locked", "ulimit -l", ulimits={"memlock": "unlimited"})
    mounts = ("mkdir -p /tmp/m", "mount -t tmpfs none /tmp/m && echo mounted")
    assert "mounted" in jobs.follow("privileged", *mounts, privileged=True)


def test_a_job_goes_on_while_the_engine_and_the_shim_are_restarted(
    node: VirtualMachine, jobs: Jobs
) -> None:
    jobs.start("long", "echo begun", "while [ ! -e /tmp/go ]; do sleep 1; done", "echo ended")
    jobs.wait_for_log("long", "begun")
    node.run("systemctl", "restart", "docker.service")
    node.run("systemctl", "restart", "fairlead-shim.service")
    container = node.run("docker", "ps", "-q", "--filter", "label=fairlead.task").split()
    assert len(container) == 1
    node.run("docker", "exec", container[0], "touch", "/tmp/go")
    jobs.wait_for("long", "done")
    assert "ended" in jobs.log("long")
    assert len(jobs.attempts("long")) == 1


@pytest.fixture(params=["cgroupfs", "systemd"])
def cgroup_driver(
    request: pytest.FixtureRequest, node: VirtualMachine, controller: ControllerProcess
) -> Iterator[str]:
    """The image's own, and that of an engine that its operator has installed."""
    driver: str = request.param
    if driver == "systemd":
        _use_driver(node, controller, "cgroupfs", driver)
    yield driver
    if driver == "systemd":
        _use_driver(node, controller, driver, "cgroupfs")


def _use_driver(node: VirtualMachine, controller: ControllerProcess, old: str, new: str) -> None:
    node.run("sed", "-i", f"s/cgroupdriver={old}/cgroupdriver={new}/", "/etc/docker/daemon.json")
    node.run("systemctl", "restart", "docker.service", "fairlead-shim.service")
    wait_until_ready(controller, node.name)


def test_each_job_of_a_used_container_has_a_leaf_where_systemd_owns_the_cgroups(
    cgroup_driver: str, node: VirtualMachine, jobs: Jobs
) -> None:
    """With cgroups of version 2 alone: a daemon is found, a kill for memory is its job's."""
    assert node.run("stat", "-fc", "%T", "/sys/fs/cgroup") == "cgroup2fs\n"
    assert node.run("docker", "info", "-f", "{{.CgroupDriver}}") == f"{cgroup_driver}\n"
    name = f"tiny-{cgroup_driver}"
    daemon = "(setsid sh -c '(setsid sleep 600 > /dev/null 2>&1 &)' &)"
    jobs.start(
        name,
        "grep -o 'fairlead-[0-9a-f]*-[0-9]*$' /proc/self/cgroup",
        f'if [ "$FAIRLEAD_PARAM_SEED" = 3 ]; then {daemon}; fi',
        'if [ "$FAIRLEAD_PARAM_SEED" = 5 ]; then cat /dev/zero | tail -c 1000000000; fi',
        sweep={"matrix": {"seed": "0..7"}, "max_parallel": 1, "reuse_container": True},
    )
    jobs.wait_for(name, "failed")
    found = jobs.inspect(name)["jobs"]
    lasts = {job["replica"]: job["attempts"][-1]["termination_reason"] for job in found}
    assert lasts == dict.fromkeys(range(8), "done_by_runner") | {5: "out_of_memory"}
    lines = jobs.log(name).splitlines()
    leaves = [line.rpartition(" ")[2] for line in lines if "fairlead-" in line]
    assert len(leaves) == len(set(leaves)) == 8
    tasks = [leaf.rpartition("-")[0] for leaf in leaves]
    assert len(set(tasks[:4])) == 1, "no job before the daemon left anything"
    assert len(set(tasks)) == 3, "a new container follows the daemon, and the kill"
    left = ("-type", "d", "-regex", ".*/fairlead-[0-9a-f]+-[0-9]+")
    assert node.run("find", "/sys/fs/cgroup", *left) == ""


def test_a_reboot_ends_what_ran_and_the_job_is_tried_again(
    node: VirtualMachine, controller: ControllerProcess, jobs: Jobs, figures: Figures
) -> None:
    once = "if [ -e /data/second ]; then echo again; else touch /data/second; sleep 3600; fi"
    jobs.start(
        "rebooted",
        "echo begun",
        once,
        retry={"on_events": ["interruption"]},
        volumes=["seen:/data"],
    )
    jobs.wait_for_log("rebooted", "begun")
    wait_until(lambda: len(jobs.attempts("rebooted")) == 1)
    begun = time.monotonic()
    node.attempt("systemctl", "reboot")
    jobs.wait_for("rebooted", "done")
    figures.note("seconds from a reboot to the end of the next attempt", time.monotonic() - begun)
    first, second = jobs.attempts("rebooted")
    assert first["termination_reason"] == "instance_unreachable"
    assert second["status"] == "done"
    wait_until_ready(controller, "vm1")


def test_two_machines_run_a_gang(
    node: VirtualMachine,
    image: Path,
    new_machine: MachineFactory,
    controller: ControllerProcess,
    own_data: Path,
    jobs: Jobs,
    vm_folder: Path,
) -> None:
    other = new_machine(image, 2)
    boot_node(other, controller, own_data)
    other.wait_for_boot()
    import_busybox(other, vm_folder)
    speak = (
        'if [ "$FAIRLEAD_NODE_RANK" = 0 ]; then echo heard "$(nc -l -p 9999)"; else '
        'until echo rank 1 | nc "$FAIRLEAD_MASTER_NODE_IP" 9999; do sleep 1; done; fi'
    )
    jobs.start("gang", speak, nodes=2, resources={"memory": "128MB"})
    jobs.wait_for("gang", "done")
    assert "heard rank 1" in jobs.log("gang")
    ran_on = {job["attempts"][0]["node"] for job in jobs.inspect("gang")["jobs"]}
    assert ran_on == {"vm1", "vm2"}
