"""The whole path as its users see it: command → controller → sshd → shim → engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fairlead.rest import ControllerClient, run_path
from fairlead.wire.frames import Frame
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import CommandResult, ControllerProcess, ShimProcess
from tests.support.ssh_daemon import TUNNEL_USER, SshDaemon
from tests.support.waiting import LONG, wait_until

T = TypeVar("T")
ENDED = ("done", "failed", "terminated")
UNTIL_ASKED = "while [ ! -e /tmp/go ]; do sleep 0.05; done"
"""A command of a job that waits for `RunLab.let_go`."""


class ControllerLab:
    """A controller as its users see it; `image` is what tasks run in that name none. Without it
    they ask for none, as on nodes of the process engine."""

    controller: ControllerProcess
    folder: Path
    image: str

    def write(self, **fields: Any) -> Path:
        """A task's file; YAML is a superset of JSON, so values may be any JSON."""
        image = {"image": self.image} if self.image else {}
        task = {"type": "task", **image, **fields}
        file = self.folder / "task.yaml"
        file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in task.items()))
        return file

    def cli(self, *args: str | Path) -> CommandResult:
        return self.controller.cli(*args)

    def apply(self, name: str, *options: str, **fields: Any) -> CommandResult:
        """Submitted and followed to the end."""
        return self.cli("apply", "-f", self.write(**fields), "-n", name, *options)

    def submit(self, name: str, *options: str, **fields: Any) -> None:
        self.apply(name, "-d", *options, **fields).succeeded()

    def start(self, name: str, **fields: Any) -> None:
        """Submitted, and RUNNING."""
        self.submit(name, **fields)
        self.wait_for(name, "running")

    def get(self, path: str, **query: object) -> Any:
        return json.loads(self._client().get(path, **query))

    def inspect(self, name: str) -> Any:
        return self.get(run_path(name))

    def attempts(self, name: str) -> Any:
        return self.inspect(name)["jobs"][0]["attempts"]

    def wait_for(self, name: str, *statuses: str, timeout: float = LONG) -> Any:
        """The run, once it has one of the statuses, which by default are the final ones."""
        wanted = statuses or ENDED

        def reached() -> Any:
            run = self.inspect(name)
            return run if run["status"] in wanted else None

        return self.wait_until(name, reached, f"{name} to be {' or '.join(wanted)}", timeout)

    def wait_until(
        self, name: str, condition: Callable[[], T], what: str, timeout: float = LONG
    ) -> T:
        """The first true value of `condition`. Raises TimeoutError, which says how the run is."""
        try:
            return wait_until(condition, timeout, what)
        except TimeoutError as late:
            raise TimeoutError(f"{late}; {self._state_of(name)}") from None

    def _state_of(self, name: str) -> str:
        """The run's jobs and latest events in one line: of a test that fails elsewhere, the message
        may be all that is seen."""
        run = self.inspect(name)
        jobs = [
            (job["status"], job["pending_reason"], job["not_ready"], _told(job["attempts"][-1:]))
            for job in run["jobs"]
        ]
        events = self.get("/v1/events", run=run["id"], limit=1000)["events"][-40:]
        changes = [
            (event["at"], event["kind"], event["to_status"], event["message"]) for event in events
        ]
        return f"the run is {run['status']}, its jobs {jobs}, after {changes}"

    def end_runs(self) -> None:
        """Abort what is left of runs, and wait until it is gone."""
        for run in self.get("/v1/runs")["runs"]:
            self.cli("stop", run["id"], "--abort").succeeded()
            self.wait_for(run["id"])

    def frames(self, name: str, *, follow: bool = False, offset: int = 0) -> list[Frame]:
        """The log as it is stored now, or (follow) until the attempt has ended."""
        client = self._client()
        if follow:
            return list(client.followed_frames(name, lambda: None, offset=offset))
        return list(client.stored_frames(name, offset=offset))

    def log(self, name: str) -> bytes:
        return b"".join(frame.payload for frame in self.frames(name))

    def wait_for_log(self, name: str, text: bytes, timeout: float = LONG) -> None:
        wait_until(lambda: text in self.log(name), timeout, f"{text!r} in the log of {name}")

    def node(self, name: str = "n1") -> Any:
        return next(node for node in self.get("/v1/nodes")["nodes"] if node["name"] == name)

    def wait_for_node(self, test: Callable[[Any], T], name: str = "n1", timeout: float = LONG) -> T:
        return wait_until(lambda: test(self.node(name)), timeout, f"node {name}")

    def _client(self) -> ControllerClient:
        return ControllerClient(self.controller.url, self.controller.token)


def _told(attempts: list[Any]) -> list[Any]:
    shown = ("id", "number", "node", "termination_reason", "message", "registered_at")
    return [[attempt[field] for field in shown] for attempt in attempts]


@dataclass
class PlainLab(ControllerLab):
    """A controller that knows one node of the process engine, n1."""

    controller: ControllerProcess
    shim: ShimProcess
    folder: Path
    image: str = ""


@dataclass
class RunLab(ControllerLab):
    """A controller that knows one node, n1; `port` is where it finds the node's sshd."""

    controller: ControllerProcess
    shim: ShimProcess
    dockerd: DockerDaemon
    sshd: SshDaemon
    port: int
    folder: Path
    image: str
    tunnel_user: str = TUNNEL_USER
    shim_socket: Path | None = None
    """Where the controller is told to look for the shim, if not where it is."""

    def container(self, name: str) -> str:
        """The id of the container of the run's latest attempt."""
        attempt = self.attempts(name)[-1]["id"]
        return self.dockerd.docker("ps", "-aq", "--no-trunc", "--filter", f"name={attempt}")

    def address(self, name: str) -> str:
        """The address of the run's container, whoever has connected it."""
        (found,) = json.loads(self.dockerd.docker("inspect", self.container(name)))
        wired = found["Config"]["Labels"].get("fairlead.wire")
        networks = found["NetworkSettings"]["Networks"].values()
        return str(wired or next(iter(networks))["IPAddress"])

    def ssh_host(self, name: str) -> str:
        """Where its node reaches the run's SSH port."""
        look = '{{index .Config.Labels "fairlead.wire"}}'
        return self.dockerd.docker("inspect", "-f", look, self.container(name)) or "127.0.0.1"

    def inside(self, name: str, *command: str) -> str:
        return self.dockerd.docker("exec", self.container(name), *command)

    def let_go(self, *names: str) -> None:
        for name in names:
            # Detached: the job may end, and its container with this command, before it is over.
            self.dockerd.docker("exec", "-d", self.container(name), "touch", "/tmp/go")

    def add_node(self, name: str, *options: str | Path) -> CommandResult:
        address: list[str | Path] = ["--host", "127.0.0.1", "--port", str(self.port)]
        login: list[str | Path] = ["--user", self.tunnel_user]
        login += ["--socket", self.shim_socket or self.shim.socket]
        return self.cli("node", "add", name, *address, *login, *options)

    def connect_node(self, name: str, *options: str | Path) -> None:
        """Add it and wait: until it has connected it counts as able to hold any job."""
        self.add_node(name, *options).succeeded()
        self.wait_for_node(lambda node: node["status"] == "connected", name)
