"""A stock virtual machine becomes a node with Docker by one command, and is left as wished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from installer.bundle.packing import write_tar
from tests.support.another_bundle import another_version
from tests.support.processes import CommandResult, ControllerProcess
from tests.vm.conftest import Figures, MachineFactory, import_busybox, wait_until_ready
from tests.vm.jobs import IMAGE, Jobs
from tests.vm.machine import VirtualMachine, admin_data

_ENGINE = "/etc/docker/daemon.json"
_PATIENCE = 1800.0
_ON_STOCK: dict[str, Any] = {"constraints": ["kind EQ stock"]}
Install = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def stock(base: Path, new_machine: MachineFactory, identity: Path) -> Iterator[VirtualMachine]:
    """Debian with a login, without Docker and without Fairlead. Its jobs are its own."""
    machine = new_machine(base, 3)
    machine.boot(admin_data(identity.with_suffix(".pub").read_text()))
    machine.wait_for_boot()
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def install(stock: VirtualMachine, identity: Path, controller: ControllerProcess) -> Install:
    """`fairlead node install`, as an operator types it. Fails when the command does."""

    def call(*options: str | Path) -> CommandResult:
        target = f"admin@127.0.0.1:{stock.port}"
        words: list[str | Path] = ["--name", "stock", "--identity", identity, "--yes"]
        words += ["--host-key", stock.host_key, "--attribute", "kind=stock", "--json", *options]
        return controller.cli("node", "install", target, *words, timeout=_PATIENCE).succeeded()

    return call


def test_one_command_brings_docker_and_two_more_change_nothing(
    stock: VirtualMachine,
    install: Install,
    archive: Path,
    controller: ControllerProcess,
    jobs: Jobs,
    vm_folder: Path,
    figures: Figures,
) -> None:
    assert stock.attempt("test", "-e", "/usr/sbin/dockerd").returncode == 1
    given: list[str | Path] = ["--bundle", archive, "--docker", "install"]
    with figures.timed("seconds of node install with Docker"):
        assert install(*given).json["node"]["status"] == "connected"
    wait_until_ready(controller, "stock")
    import_busybox(stock, vm_folder)
    assert "hello from Docker" in jobs.follow("hello", "echo hello from Docker", **_ON_STOCK)
    installed = _files(stock)
    for _ in range(2):
        assert install(*given).json["changed"] == []
        assert _files(stock) == installed


def test_an_upgrade_leaves_the_container_of_a_job_running(
    stock: VirtualMachine,
    install: Install,
    controller: ControllerProcess,
    jobs: Jobs,
    tmp_path: Path,
) -> None:
    wait = "while [ ! -e /tmp/go ]; do sleep 1; done"
    jobs.start("upgraded", "echo begun", wait, "echo ended", **_ON_STOCK)
    jobs.wait_for_log("upgraded", "begun")
    container = _containers(stock)
    first = stock.run("readlink", "/opt/fairlead/current")
    install("--bundle", write_tar(another_version(tmp_path), tmp_path), "--upgrade")
    assert stock.run("readlink", "/opt/fairlead/current") != first
    assert _containers(stock) == container
    stock.run("docker", "exec", container[0], "touch", "/tmp/go")
    jobs.wait_for("upgraded", "done")
    assert "ended" in jobs.log("upgraded")
    assert len(jobs.attempts("upgraded")) == 1


def test_an_engine_that_is_there_keeps_its_settings_and_its_containers(
    stock: VirtualMachine,
    install: Install,
    archive: Path,
    controller: ControllerProcess,
    jobs: Jobs,
) -> None:
    install("--uninstall")
    own = {"log-driver": "json-file"}
    stock.run("tee", _ENGINE, stdin=json.dumps(own).encode())
    stock.run("systemctl", "restart", "docker.service")
    stock.run("docker", "run", "-d", "--name", "theirs", IMAGE, "sleep", "1000000")
    before = _engine(stock)
    install("--bundle", archive, "--docker", "use")
    wait_until_ready(controller, "stock")
    assert json.loads(stock.run("cat", _ENGINE)) == {**own, "live-restore": True}
    assert _engine(stock) == before
    assert "again" in jobs.follow("again", "echo again", **_ON_STOCK)
    install("--uninstall")
    assert json.loads(stock.run("cat", _ENGINE)) == own
    assert stock.run("docker", "inspect", "-f", "{{.State.Running}}", "theirs") == "true\n"


def _files(machine: VirtualMachine) -> dict[str, str]:
    """Path to mode, size and time of each file that an installation could touch."""
    folders = ("/etc", "/opt", "/usr", "/lib/systemd")
    wanted = ("-xdev", "-type", "f", "-not", "-path", "/etc/*-", "-printf", r"%p\t%m %s %T@\n")
    return dict(line.split("\t", 1) for line in machine.run("find", *folders, *wanted).splitlines())


def _containers(machine: VirtualMachine) -> list[str]:
    """The identifiers of the jobs' containers that run."""
    return machine.run("docker", "ps", "-q", "--filter", "label=fairlead.task").split()


def _engine(machine: VirtualMachine) -> str:
    """The process of the engine: another one after a restart."""
    return machine.run("systemctl", "show", "-p", "MainPID", "--value", "docker.service")
