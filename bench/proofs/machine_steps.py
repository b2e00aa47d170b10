"""A controller that is killed (SIGKILL) once at each step of a machine's life leaves one machine
for each record, and in the end none.

The steps are found by a life without kills: before and after each commit about a machine and each
call to its provider, and at EC2 also after what a call asks for was done and before its answer.
Then each of them ends the controller once, in a life of its own. Machines of EC2 are moto's behind
a front, which never become nodes; those of a program do, and run a job.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.proofs._table import conclude
from bench.proofs.machines import _KEYS, _LIVE, _PROGRAM, Account, _account
from fairlead.errors import ApiError, ConnectionLost
from fairlead.rest import ControllerClient
from tests.support import stepped_controller
from tests.support.daemons import end_processes_that_mention
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

_PATIENCE = 300.0
_EC2_RENTS = {
    "provider": "aws",
    "nodes": "0..1",
    "instance_types": ["g6.xlarge"],
    "spot": "never",
}
_NEAR_RENTS = {
    "provider": "near",
    "nodes": "0..1",
    "instance_types": ["small"],
    "idle_duration": "1s",
}
_EC2_DID = "after EC2 did "
_LATE_ADDRESS = Path(__file__).with_name("_late_address.py")


class Lab:
    """A controller that dies at wanted steps and is started again."""

    def __init__(self, folder: Path, account: Account) -> None:
        self.steps, self.wanted = folder / "steps", folder / "wanted"
        self.steps.touch()
        os.environ[stepped_controller.STEPS] = str(self.steps)
        os.environ[stepped_controller.WANTED] = str(self.wanted)
        self.account = account
        self.deaths = 0
        shim = Path(sys.executable).parent / "fairlead-shim"
        self.near = folder / "near"
        program = [sys.executable, str(_LATE_ADDRESS), sys.executable, str(_PROGRAM)]
        program += ["--folder", str(self.near), "--shim", str(shim)]
        near = {"type": "exec", "command": program, "idempotent": True}
        config = folder / "controller.json"
        config.write_text(json.dumps({"providers": {"aws": account.provider(), "near": near}}))
        self.process = ControllerProcess(
            folder / "c",
            "--config",
            config,
            outlasts_tests=True,
            programs=_programs(folder / "bin"),
        )
        self.process.start()
        account.front.watcher = self._answered
        self._armed = ""

    def arm(self, step: str) -> None:
        self._armed = step if step.startswith(_EC2_DID) else ""
        if step and not self._armed:
            # At once: the controller reads it at each step.
            (fresh := self.wanted.with_suffix(".new")).write_text(step)
            fresh.rename(self.wanted)

    def await_list(self, step: str) -> None:
        """Let the provider be asked for its next list if the wanted step is about one: lists are
        asked for now and then, whatever a machine does."""
        if stepped_controller.LIST in step:
            wait_until(lambda: not self.wanted.exists(), _PATIENCE, f"{step} to be met")
            self.revive()

    def disarm(self) -> bool:
        """Return whether the wanted step was met."""
        is_met = not self._armed and not self.wanted.exists()
        self.revive()
        self._armed = ""
        self.wanted.unlink(missing_ok=True)
        return is_met

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Ask until there is an answer, by a controller that may have died."""
        while True:
            self.revive()
            client = ControllerClient(self.process.url, self.process.token)
            try:
                call = getattr(client, method)
                return json.loads(call(path, **query) if method == "get" else call(path, body))
            except (ConnectionLost, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in (502, 503, 504):
                    raise
                time.sleep(0.1)

    def revive(self) -> None:
        if not self.process.daemon.is_alive():
            self.deaths += 1
            self.process.start()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, _PATIENCE, what)

    def rent(self, fleet: str, machines: object) -> None:
        self.ask("put", f"/v1/fleets/{fleet}/machines", {"machines": machines, "budget": None})

    def submit(self, fleet: str, name: str) -> None:
        job = {
            "type": "task",
            "commands": ["true"],
            "resources": {"cpu": 1, "memory": "64MB"},
            "fleets": [fleet],
            "name": name,
        }
        self.ask("post", "/v1/runs", {"configuration": job, "client_key": name})

    def records(self, fleet: str) -> list[dict[str, Any]]:
        every = self.ask("get", "/v1/machines", all="true", limit=1000)["machines"]
        return [one for one in every if one["fleet"] == fleet]

    def live(self, fleet: str) -> list[dict[str, Any]]:
        return [one for one in self.records(fleet) if one["status"] != "terminated"]

    def has_ended(self, fleet: str) -> bool:
        found = self.records(fleet)
        return bool(found) and all(one["status"] == "terminated" for one in found)

    def _answered(self, action: str) -> None:
        """EC2 did what was asked, and has not answered yet."""
        with self.steps.open("a") as steps:
            steps.write(f"{_EC2_DID}{action}\n")
        if self._armed == f"{_EC2_DID}{action}":
            self._armed = ""
            self.process.kill9()


def _programs(folder: Path) -> Path:
    """Return a folder with a `fairlead` that notes its steps."""
    folder.mkdir()
    program = folder / "fairlead"
    module = stepped_controller.__name__
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
    program.chmod(0o755)
    return folder


def _life_at_ec2(lab: Lab, name: str, step: str) -> list[str]:
    """Rent a machine, look for its address, and end it; return what went wrong."""
    begun = lab.steps.stat().st_size
    lab.rent("burst", _EC2_RENTS)
    lab.submit("burst", name)

    def is_asked_for() -> bool:
        lab.revive()
        return "after describe" in lab.steps.read_text()[begun:]

    lab.wait(is_asked_for, "the machine's address to be asked for")
    lab.wait(lambda: [one["instance_id"] for one in lab.live("burst")] != [None], "its id")
    lab.ask("post", f"/v1/runs/{name}/stop", {"abort": True})
    lab.rent("burst", None)
    lab.wait(lambda: lab.has_ended("burst"), "the machine to end")
    lab.await_list(step)
    made = lab.account.machines()
    live = lab.account.machines(*_LIVE).total()
    broken = [f"record {one} had {count} machines" for one, count in made.items() if count > 1]
    records = {one["id"] for one in lab.records("burst")}
    broken += [f"machine of {one} has no record" for one in made.keys() - records]
    return broken + ([f"{live} machines are left"] if live else [])


def _life_of_a_program(lab: Lab, name: str, step: str) -> list[str]:
    """Rent a machine, run a job on it, and let it idle; return what went wrong."""
    lab.submit("near", name)
    lab.wait(lambda: lab.ask("get", f"/v1/runs/{name}")["status"] == "done", f"{name} to be done")
    lab.wait(lambda: lab.has_ended("near"), "the machine to end")
    lab.await_list(step)
    left = list(lab.near.glob("*/machine.json"))
    attempts = lab.ask("get", f"/v1/runs/{name}")["jobs"][0]["attempts"]
    broken = [] if len(attempts) == 1 else [f"{name} had {len(attempts)} attempts"]
    return broken + ([f"{len(left)} machines of the program are left"] if left else [])


def _each_step(
    lab: Lab, where: str, life: Callable[[Lab, str, str], list[str]], only: str
) -> tuple[list[tuple[str, object]], list[str]]:
    """Live once to know the steps, and then once for each of them."""
    began = time.monotonic()
    broken = [f"{where}, no kill: {one}" for one in life(lab, f"{where}-whole", "")]
    steps = [one for one in dict.fromkeys(lab.steps.read_text().splitlines()) if only in one]
    missed = []
    for number, step in enumerate(steps):
        lab.arm(step)
        found = life(lab, f"{where}-{number}", step)
        broken += [f"{where}, killed {step}: {one}" for one in found]
        is_met = lab.disarm()
        if not is_met:
            missed.append(step)
        how = "killed" if is_met else "not met"
        print(f"{where}: {how} {step}: {'; '.join(found) or 'kept'}", flush=True)
    lab.steps.write_text("")
    rows: list[tuple[str, object]] = [
        (f"{where}: steps of a machine's life", len(steps)),
        (f"{where}: … at which the controller was killed", len(steps) - len(missed)),
        (f"{where}: records of machines", len(lab.records("burst" if where == "ec2" else "near"))),
        (f"{where}: seconds", round(time.monotonic() - began)),
    ]
    broken += [f"{where}: {one} was not met again" for one in missed]
    return rows, broken


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove machine_steps", description=__doc__)
    parser.add_argument("--step", default="", help="only steps with this text in their name")
    only = parser.parse_args().step
    os.environ.update(_KEYS)
    folder = Path(tempfile.mkdtemp(prefix="fl-steps-", dir="/tmp"))
    os.environ["PYTHONPATH"] = str(CHECKOUT)
    try:
        with ExitStack() as stack:
            lab = Lab(folder, stack.enter_context(_account(folder)))
            stack.callback(end_processes_that_mention, f"{folder / 'near'}/")
            stack.callback(lab.process.close)
            lab.ask("post", "/v1/fleets", {"name": "burst", "attributes": {}})
            lab.ask("post", "/v1/fleets", {"name": "near", "attributes": {}})
            rows, broken = _each_step(lab, "ec2", _life_at_ec2, only)
            made = lab.account.machines().total()
            lab.rent("near", _NEAR_RENTS)
            others, also = _each_step(lab, "program", _life_of_a_program, only)
            orphans = lab.ask("get", "/v1/machine-orphans")["orphans"]
            broken += [*also, *(f"orphan {one}" for one in orphans)]
            rows += [("ec2: machines that were made", made), *others, ("orphans", len(orphans))]
            rows.append(("kills", lab.deaths))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conclude("a kill at each step of a machine", rows, broken)


if __name__ == "__main__":
    main()
