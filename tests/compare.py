"""`./dev compare REVISION`: does the working tree behave as that revision did?

Both trees run the same scenario through their command and daemons: simulated stories, the API
documents, what YAML becomes in the database, and what a finished task looks like to the controller
and to the shim. Identities, times and paths are masked. A change of layout or types must print
nothing but "equal".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.daemons import Daemon
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parent.parent
STORIES = range(1, 11)
TABLES = {"runs": ("policy", "configuration", "rest"), "jobs": ("spec", "rest")}
WIDE = """
type: task
name: wide
nodes: 2
image: example/train:2
commands: [python train.py]
env: {EPOCHS: 3, MODE: fast}
secrets: {HF_TOKEN: "12345678"}
working_dir: /work
user: "1000:1000"
pull_policy: always
tty: true
init: true
volumes:
  - /data:/data:ro
  - {name: cache, path: /cache}
ulimits: {nofile: 4096}
cap_drop: [NET_RAW]
resources: {cpu: 2, memory: 8GB, shm_size: 1GB, disk: 20GB, gpu: "A100:80GB:2"}
constraints: [region EQ a]
retry: {on_events: [error, interruption], max_failures: 3, duration: 2h}
max_duration: 12h
stop_duration: 1m
priority: 60
gang: {}
env_style: [torch]
"""
MASKS = (
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"), "TIME"),
    (re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b"), "TIME"),
    (re.compile(r"/tmp/[\w.-]+"), "FOLDER"),
    (re.compile(r'("[\w_]*(port|pid|bytes|size|started|inode|version)": )\d+'), r"\1NUMBER"),
    # A step that lasts some milliseconds: the command sees it or not.
    (re.compile(r"^fairlead: starting on .*\n", re.MULTILINE), ""),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"ssh-ed25519 \S+"), "KEY"),
)


class Tree:
    """The programs of one checkout, run by this interpreter with that checkout's modules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scripts: dict[str, str] = {}
        for project in (root / "pyproject.toml", root / "daemons/pyproject.toml"):
            if project.exists():
                self._scripts |= tomllib.loads(project.read_text())["project"]["scripts"]
        self.env = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}

    def program(self, name: str) -> list[str]:
        module, _, function = self._scripts[name].partition(":")
        return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"]

    def output(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        """Standard output, and after it what was said on standard error: nothing orders the two. A
        failure is part of the behaviour."""
        done = subprocess.run(
            argv,
            cwd=self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout + done.stderr


class Installation:
    """A controller and, once `add_node` is called, a node with the process engine."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self._tree = tree
        self.data = folder / "controller"
        self.socket = folder / "shim.sock"
        self.url = f"http://127.0.0.1:{free_port()}"
        listen = ["--data", str(self.data), "--listen", self.url.removeprefix("http://")]
        self._controller = Daemon(
            [*tree.program("fairlead"), "controller", *listen],
            folder / "controller.log",
            env=tree.env,
        )
        options = ["--data", str(folder / "shim"), "--socket", str(self.socket)]
        self._shim = Daemon(
            [*tree.program("fairlead-shim"), *options, "--engine", "process"],
            folder / "shim.log",
            env=tree.env,
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._controller.spawn()
        try:
            self._controller.wait_ready(self._answers)
            yield
        finally:
            for daemon in (self._controller, self._shim):
                if daemon.is_alive():
                    daemon.stop()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.document("/v1/openapi.json"))
        return False

    def cli(self, *args: str) -> str:
        token = str(self.data / "admin-token")
        env = {"FAIRLEAD_URL": self.url, "FAIRLEAD_TOKEN_FILE": token}
        return self._tree.output(*self._tree.program("fairlead"), *args, env=env)

    def add_node(self) -> None:
        self._shim.spawn()
        self._shim.wait_ready(self.socket.exists)
        self.cli("node", "add", "here", "--local", str(self.socket))

    def document(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def shim_document(self, path: str) -> Any:
        return asyncio.run(self._ask_shim(path))

    def task_statuses(self) -> list[str]:
        return [task["status"] for task in self._tasks()]

    def has_listening_task(self) -> bool:
        """Whether its one task runs, and its runner has opened its socket."""
        return [(task["status"], _listens(task)) for task in self._tasks()] == [("running", True)]

    def _tasks(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.shim_document("/v1/tasks")
        return tasks

    async def _ask_shim(self, path: str) -> Any:
        connector = aiohttp.UnixConnector(str(self.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://shim{path}") as answer,
        ):
            return await answer.json()

    def rows(self) -> Iterator[tuple[str, str]]:
        """The stored form of each run's YAML."""
        with contextlib.closing(sqlite3.connect(self.data / "controller.db")) as database:
            for table, columns in TABLES.items():
                wanted = ", ".join(f'"{name}"' for name in columns)
                for row in database.execute(f"SELECT {wanted} FROM {table} ORDER BY rowid"):
                    for name, value in zip(columns, row, strict=True):
                        yield f"{table}.{name}", pretty(json.loads(value))


def _listens(task: Mapping[str, Any]) -> bool:
    # Shims until 2026-11-28 do not say it: there is the socket, once the runner has it.
    listens: bool | None = task.get("runner_listens")
    return Path(task["runner_socket"]).exists() if listens is None else listens


def pretty(value: Any) -> str:
    """Keys stay in their order: scripts may rely on the first ones."""
    return json.dumps(value, indent=1)


def contract(document: Any) -> str:
    """The document without its sentences, in an order of its own."""
    return json.dumps(_without_words(document), indent=1, sort_keys=True)


def _without_words(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            name: _without_words(value)
            for name, value in part.items()
            if not (name in ("summary", "description") and isinstance(value, str))
        }
    return [_without_words(value) for value in part] if isinstance(part, list) else part


def observe(tree: Tree, samples: Sequence[Path]) -> str:
    """All that is compared, as one masked text."""
    parts: list[tuple[str, str]] = []
    for seed in STORIES:
        story = tree.output(sys.executable, "-m", "tests.simulation", "--seed", str(seed))
        parts.append((f"story {seed}", story.rstrip().rpartition("\n")[2]))
    with tempfile.TemporaryDirectory() as name:
        installation = Installation(tree, Path(name))
        with installation.running():
            parts += observe_installation(installation, samples)
    return mask("".join(f"== {title}\n{text}\n" for title, text in parts))


def observe_installation(
    installation: Installation, samples: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    yield "controller's API", contract(installation.document("/v1/openapi.json"))
    for sample in samples:
        yield f"plan {sample.name}", installation.cli("plan", "-f", str(sample))
        yield f"apply {sample.name}", installation.cli("apply", "-d", "-f", str(sample))
    yield from installation.rows()
    for run in json.loads(installation.cli("ps", "--json"))["runs"]:
        installation.cli("stop", run["name"], "--abort")
    installation.add_node()
    yield "shim's API", contract(installation.shim_document("/v1/openapi.json"))
    hello = str(PROJECT / "examples" / "hello.yaml")
    yield "log", installation.cli("apply", "-f", hello, "--name", "finished")
    yield "inspect", installation.cli("inspect", "finished", "--json")
    installation.cli("apply", "-d", "-f", hello, "--name", "running")
    wait_until(installation.has_listening_task)
    yield "tasks", pretty(installation.shim_document("/v1/tasks"))
    installation.cli("stop", "running", "--abort")
    wait_until(lambda: installation.task_statuses() == [])


def mask(text: str) -> str:
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "tree"
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(root), revision], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev compare", description=__doc__)
    parser.add_argument("revision", help="a commit, such as main or HEAD~1")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as name:
        wide = Path(name) / "wide.yaml"
        wide.write_text(WIDE)
        samples = [*sorted((PROJECT / "examples").glob("*.yaml")), wide]
        with checkout(revision) as root:
            before = observe(Tree(root), samples)
        after = observe(Tree(PROJECT), samples)
    differences = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), revision, "working tree", lineterm=""
        )
    )
    sys.stdout.write("\n".join(differences) or f"equal: {len(after.splitlines())} lines")
    sys.stdout.write("\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
