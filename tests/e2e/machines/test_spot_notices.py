"""A cloud announces that it takes a spot machine back: from the notice in its metadata service to
the stop signal of the job, the next machine, and the job there. The machines are shims of this
host; the service is a double."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.metadata import MetadataService, metadata_service
from tests.support.daemons import end_processes_that_mention
from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory
from tests.support.waiting import LONG, wait_until

_GCP = "/computeMetadata/v1/instance/"
FLEET = {
    "type": "fleet",
    "name": "burst",
    "machines": {"provider": "cloud", "nodes": "0..2", "spot": "auto", "idle_duration": "5s"},
}
# It takes its time to stop, as one that saves what it has learned.
JOB = {
    "type": "task",
    "name": "trained",
    "fleets": ["burst"],
    "commands": [
        "trap 'echo told to stop; sleep 10; echo saved; exit 1' TERM",
        "echo begun",
        "while :; do sleep 0.1; done",
    ],
    "resources": {"cpu": 1, "memory": "64MB"},
    "retry": {"on_events": ["interruption"]},
}


def _ec2(service: MetadataService) -> None:
    at = datetime.now(UTC) + timedelta(seconds=120)
    action = {"action": "terminate", "time": at.isoformat(timespec="seconds")}
    service.answers["/latest/meta-data/spot/instance-action"] = json.dumps(action)


def _gcp(service: MetadataService) -> None:
    service.answers[f"{_GCP}preempted"] = "TRUE"


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as found:
        found.answers = {f"{_GCP}preempted": "FALSE", f"{_GCP}maintenance-event": "NONE"}
        yield found


@pytest.fixture
def rented(testbed_folder: Path) -> Iterator[Path]:
    folder = testbed_folder / "spot"
    yield folder
    end_processes_that_mention(f"{folder}/")


def _shim_of(cloud: str, port: int, folder: Path) -> Path:
    """Return a program that starts a shim on a machine of this cloud."""
    program = folder / "recalled-shim"
    argv = shlex.join([sys.executable, "-m", "tests.support.recalled_shim", cloud, str(port)])
    program.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
    program.chmod(0o755)
    return program


class Lab:
    def __init__(self, controller: ControllerProcess) -> None:
        self._controller = controller

    def json(self, *command: str) -> Any:
        return self._controller.cli(*command, "--json").succeeded().json

    def apply(self, document: dict[str, Any], folder: Path, *options: str) -> None:
        file = folder / f"{document['name']}.yaml"
        file.write_text(json.dumps(document))
        self._controller.cli("apply", "-f", file, *options).succeeded()

    def log(self, *options: str) -> str:
        return self._controller.cli("logs", "trained", *options).output

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the latest machine of each type that was ever rented."""
        return {one["instance_type"]: one for one in self._every()}

    def count(self) -> int:
        return len(self._every())

    def _every(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("machine", "list", "--all")["machines"]
        return found

    def attempts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("inspect", "trained")["jobs"][0]["attempts"]
        return found


@pytest.mark.parametrize(("cloud", "announce"), [("ec2", _ec2), ("gcp", _gcp)])
def test_a_job_stops_at_the_notice_while_its_next_machine_comes(
    service: MetadataService,
    rented: Path,
    tmp_path: Path,
    controller_process: ControllerFactory,
    cloud: str,
    announce: Callable[[MetadataService], None],
) -> None:
    recalled = _shim_of(cloud, service.port, tmp_path)
    shim = Path(sys.executable).parent / "fairlead-shim"
    program = [sys.executable, "-m", "tests.support.spot_machines", "--folder", str(rented)]
    command = [*program, "--shim", str(shim), "--recalled-shim", str(recalled)]
    config = tmp_path / "controller.yaml"
    provider = {"type": "exec", "command": command, "idempotent": True}
    config.write_text(json.dumps({"providers": {"cloud": provider}}))
    lab = Lab(controller_process("--config", config))
    lab.apply(FLEET, tmp_path)
    lab.apply(JOB, tmp_path, "--detach")
    wait_until(lambda: "begun" in lab.log(), LONG, "the job")
    assert lab.machines().keys() == {"cheap"}
    announce(service)
    wait_until(lambda: len(lab.attempts()) == 2, LONG, "the next attempt")
    wait_until(lambda: lab.attempts()[1]["status"] == "running", LONG, "the job to go on")
    first, second = lab.attempts()
    assert first["termination_reason"] == "interrupted_by_no_capacity"
    assert "told to stop\nsaved\n" in lab.log("--attempt", "0")
    # Its next machine was ordered, on demand, while it still stopped; idle, it was kept for it.
    steady = lab.machines()["steady"]
    assert first["terminating_at"] <= steady["ordered_at"] < first["finished_at"]
    assert second["node"] == steady["name"]
    wait_until(lambda: lab.machines()["cheap"]["status"] == "terminated", LONG, "its end")
    assert lab.count() == 2
