"""Processes that a visitor has left in a job by SSH end with the job's attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.runs.visitor import Visitor, make_key
from tests.e2e.store.process_lab import ProcessLab
from tests.support.daemons import processes_of
from tests.support.lab import RunLab
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def leave(name: str) -> str:
    """A command that leaves a program with that name in its arguments, and with neither session nor
    environment in common with the visitor."""
    return f"(setsid env -i /bin/sh -c 'sleep 600; : {name}' > /dev/null 2>&1 &)"


def is_left(name: str) -> bool:
    """A process between two programs has no arguments yet: wait for it."""
    return any("sleep 600; :" in command for command in processes_of(name).values())


@pytest.fixture
def user(lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    return Visitor.with_a_key(lab, tmp_path, monkeypatch)


@pytest.mark.parametrize("init", [False, True], ids=["runner first", "init first"])
def test_processes_that_a_visitor_left_in_a_container_end_with_it(
    lab: RunLab, user: Visitor, init: bool
) -> None:
    with user.run("visited", init=init):
        container = lab.container("visited")
        assert user.ssh("visited", "visited", leave(container)).returncode == 0
        wait_until(lambda: is_left(container))
        lab.cli("stop", "visited", "--abort").succeeded()
        lab.wait_for("visited")
        # The parent of its first process, outside, ends by itself some time after it.
        left = processes_of(container).values()
        assert [command for command in left if "containerd-shim" not in command] == []


def test_processes_that_a_visitor_left_in_a_job_without_a_container_end_with_it(
    controller_process: ControllerFactory,
    shim_process: ShimFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, shim = controller_process(), shim_process("process")
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    lab = ProcessLab(controller, tmp_path)
    make_key(tmp_path / "key")
    monkeypatch.setenv("FAIRLEAD_SSH_KEY", str(tmp_path / "key"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lab.start("near", commands=["sleep 3600"], ssh="embedded")
    (attempt,) = lab.attempts("near")
    place = f"/{attempt['id']}/"
    wait_until(lambda: lab.cli("ssh", "near", "--", leave(place)).status == 0)
    wait_until(lambda: is_left(place))
    lab.cli("stop", "near", "--abort").succeeded()
    lab.wait_for("near")
    assert processes_of(place) == {}
