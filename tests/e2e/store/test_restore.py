"""A backup made while jobs run, put back after more were started: what it knows goes on, what it
does not know is kept running until an admin says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.rest import ControllerClient, decode
from tests.e2e.store.process_lab import COUNTING, ProcessLab
from tests.support.processes import ControllerProcess, ShimProcess, run_cli
from tests.support.testbed import ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

ONE_CPU = {"cpu": 1, "memory": "128MB"}
NODE_PATH = "/v1/nodes/here/tasks"


def submit_with_key(lab: ProcessLab, key: str, name: str) -> Any:
    configuration = {"type": "task", "commands": [COUNTING], "resources": ONE_CPU}
    client = ControllerClient(lab.controller.url, lab.controller.token)
    body = {"configuration": configuration, "client_key": key, "name": name}
    return decode(client.post("/v1/runs", body), dict[str, Any])["id"]


def written(shim: ShimProcess, task: str) -> int:
    """Bytes of the task's log on its node."""
    logs = shim.data / "tasks" / task / "job" / "logs"
    return sum(segment.stat().st_size for segment in logs.glob("*.seg"))


def test_a_restored_controller_goes_on_with_what_it_knows_and_leaves_alone_what_not(
    shim_process: ShimFactory, tmp_path: Path
) -> None:
    shim = shim_process("process", "--cpus", "2", "--memory", "1GiB")
    controller = ControllerProcess(tmp_path / "c")
    lab = ProcessLab(controller, tmp_path)
    backup = tmp_path / "backup"
    try:
        controller.start()
        lab.cli("node", "add", "here", "--local", shim.socket).succeeded()
        known_id = submit_with_key(lab, "k", "known")
        lab.wait_for("known", "running")
        data = ("--data", controller.data)
        run_cli("controller", "backup", backup, *data).succeeded()
        (known,) = lab.attempts("known")
        lab.start("later", commands=[COUNTING], resources=ONE_CPU)
        (later,) = lab.attempts("later")
        controller.kill9()
        run_cli("controller", "restore", backup, *data, "--force").succeeded()
        controller.start()

        listed = wait_until(lambda: lab.get(NODE_PATH)["tasks"], what="a quarantined task")
        assert [(task["id"], task["run_name"], task["status"]) for task in listed] == [
            (later["id"], "later", "running")
        ]
        lab.goes_on("known")
        (same,) = lab.attempts("known")
        assert (same["id"], same["running_at"]) == (known["id"], known["running_at"])
        assert submit_with_key(lab, "k", "another") == known_id

        seen = written(shim, later["id"])
        wait_until(lambda: written(shim, later["id"]) > seen, what="the unknown job to go on")
        lab.submit("third", commands=["echo there"], resources=ONE_CPU)

        def waits() -> Any:
            return lab.inspect("third")["jobs"][0]["pending_reason"]

        assert "CPU" in wait_until(waits, what="a reason why it waits")
        lab.cli("node", "stop-task", "here", later["id"]).succeeded()
        assert lab.wait_for("third")["status"] == "done"
        assert lab.get(NODE_PATH)["tasks"] == []
        assert not (shim.data / "tasks" / later["id"]).exists()
        lab.cli("stop", "--abort", "known").succeeded()
        lab.wait_for("known")
    finally:
        controller.close()
