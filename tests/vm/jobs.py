"""Runs of a test session, as a user submits and watches them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

IMAGE = "busybox:vm"
"""Each machine has it; there is no registry."""
_PATIENCE = 600.0
"""For a job on an emulated processor."""


class Jobs:
    """Runs on the controller, described as YAML (JSON is YAML)."""

    def __init__(self, controller: ControllerProcess, folder: Path) -> None:
        self._controller = controller
        self._folder = folder

    def write(self, name: str, *commands: str, **fields: Any) -> Path:
        job = {"type": "task", "name": name, "image": IMAGE, "commands": commands, **fields}
        job.setdefault("resources", {"cpu": 1, "memory": "128MB"})
        file = self._folder / f"{name}.yaml"
        file.write_text(json.dumps(job))
        return file

    def follow(self, name: str, *commands: str, **fields: Any) -> str:
        """What it has said when it is DONE."""
        file = self.write(name, *commands, **fields)
        return self._controller.cli("apply", "-f", file, timeout=_PATIENCE).succeeded().output

    def start(self, name: str, *commands: str, **fields: Any) -> None:
        file = self.write(name, *commands, **fields)
        self._controller.cli("apply", "-d", "-f", file).succeeded()

    def inspect(self, name: str) -> Any:
        return self._controller.cli("inspect", name, "--json").succeeded().json

    def attempts(self, name: str) -> Any:
        return self.inspect(name)["jobs"][0]["attempts"]

    def log(self, name: str) -> str:
        return self._controller.cli("logs", name).output

    def wait_for(self, name: str, status: str) -> None:
        def reached() -> bool:
            return bool(self.inspect(name)["status"] == status)

        wait_until(reached, _PATIENCE, f"{name} to be {status}")

    def wait_for_log(self, name: str, text: str) -> None:
        wait_until(lambda: text in self.log(name), _PATIENCE, f"{text!r} in the log of {name}")
