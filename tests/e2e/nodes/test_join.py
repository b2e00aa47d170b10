"""The script of the user-data tells the address of a booted node over real TLS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import free_port
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e


@pytest.fixture
def controller(controller_process: ControllerFactory) -> ControllerProcess:
    return controller_process("--join", f"127.0.0.1:{free_port()}")


def booted(controller: ControllerProcess, folder: Path) -> dict[str, str]:
    """The files that user-data writes, put below the folder, by the last part of their names."""
    text = controller.cli("node", "user-data", "gpu-1").succeeded().output
    files: dict[str, str] = {}
    for file in yaml.safe_load(text)["write_files"]:
        path = folder / Path(file["path"]).name
        path.write_text(file["content"])
        files[path.name] = str(path)
    return files


def run_join(files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = ["/usr/bin/python3", "-I", files["join.py"], files["join.json"]]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def node(controller: ControllerProcess) -> Any:
    return controller.cli("node", "show", "gpu-1", "--json").json


def test_a_node_tells_its_address_once_and_forgets_the_token(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    files = booted(controller, tmp_path)
    told = Path(files["join.json"]).read_text()
    assert node(controller)["status"] == "expected"
    done = run_join(files)
    assert (done.returncode, done.stderr) == (0, "")
    assert node(controller)["address"] == "fairlead@127.0.0.1"
    assert not Path(files["join.json"]).exists()
    Path(files["join.json"]).write_text(told)
    again = run_join(files)
    assert (again.returncode, "403" in again.stderr) == (2, True)


def test_a_node_sends_its_token_to_no_other_certificate(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    files = booted(controller, tmp_path)
    file = Path(files["join.json"])
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "certificate": "0" * 64}))
    done = run_join(files)
    assert (done.returncode, "another certificate" in done.stderr) == (1, True)
    assert node(controller)["status"] == "expected"
    assert file.exists()


def test_the_certificate_outlives_a_restart_of_the_controller(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    files = booted(controller, tmp_path)
    controller.restart()
    assert run_join(files).returncode == 0
