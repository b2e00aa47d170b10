"""The agents as a node has them: each request is answered by the bundle's own interpreters."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from controller.links.base import RunnerApi, ShimApi
from controller.links.clients import LocalLink
from fairlead.wire.job import SubmitRequest
from installer.bundle.build import INSTALLED, Bundle
from runner.app import make_server
from runner.client import RunnerClient
from runner.processes.scratch import GIVEN
from shim.api.app import Routes
from shim.monitoring.metrics import CONTENT_TYPE
from tests.support.daemons import Daemon
from tests.support.dialling import dial_to
from tests.support.docker_daemon import DockerDaemon
from tests.support.imports import IMPORT_ALL, IN_CONTAINERS, ON_NODES, imported_by
from tests.support.processes import ShimProcess
from tests.support.runner_contract import RunnerContract
from tests.support.shim_contract import ShimContract
from tests.support.waiting import LONG
from tests.unit.runner.harness import a_job, a_session

pytestmark = pytest.mark.e2e

INTERPRETER = "bin/python3.*[0-9]"
ISOLATED = ("-I", "-S", "-X", "utf8=1")


def installed(bundle: Bundle) -> list[str | Path]:
    """The beginning of a command line that finds the bundle where nodes and containers have it."""
    begin = f"""
        mount -t tmpfs none {Path(INSTALLED).parent}
        mkdir {INSTALLED}
        ln -s {bundle.folder} {INSTALLED}/{bundle.version}
        ln -s {bundle.folder}/runtime {INSTALLED}/runtime
        exec "$@"
    """
    return ["unshare", "--mount", "sh", "-ec", begin, "-"]


def interpreter(folder: Path, home: str) -> str:
    (program,) = folder.glob(INTERPRETER)
    return f"{home}/{program.relative_to(folder)}"


@pytest.fixture
def shim_of_bundle(
    bundle: Bundle, dockerd: DockerDaemon, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[ShimProcess]:
    folder = testbed_folder / f"shipped{next(numbers)}"
    shim = ShimProcess(
        folder,
        "docker",
        *("--cpus", "4", "--memory", "8GiB", "--runtime", bundle.folder / "runtime"),
        *("--gateway-folder", folder / "exposed"),
        env=dockerd.env,
        program=[*installed(bundle), f"{INSTALLED}/{bundle.version}/bin/fairlead-shim"],
    )
    shim.start()
    yield shim
    shim.close()


@pytest.fixture
def runner_socket(bundle: Bundle, tmp_path: Path) -> Iterator[Path]:
    """Of an entrypoint that the runtime's interpreter runs, without the container around it."""
    socket, memory = tmp_path / "runner.sock", tmp_path / "memory"
    memory.mkdir()
    python = interpreter(bundle.folder / "runtime", f"{INSTALLED}/runtime")
    options = ("--task", tmp_path / "task", "--socket", socket, "--peers", "any")
    argv = [*installed(bundle), python, *ISOLATED, "-m", "entrypoint.main", *options]
    entrypoint = Daemon(argv, tmp_path / "log", env={GIVEN: str(memory)})
    entrypoint.spawn()
    entrypoint.wait_ready(socket.exists)
    yield socket
    entrypoint.kill9()


class TestShippedShim(ShimContract):
    @pytest.fixture
    def image(self) -> Iterator[str]:
        """Of a registry that never answers."""
        with socket.create_server(("127.0.0.1", 0)) as registry:
            yield f"127.0.0.1:{registry.getsockname()[1]}/silent:1"

    @pytest.fixture
    async def shim(self, shim_of_bundle: ShimProcess) -> AsyncIterator[ShimApi]:
        connection = await LocalLink(str(shim_of_bundle.socket)).connect()
        yield connection.shim
        await connection.close()


class TestShippedRunner(RunnerContract):
    @pytest.fixture
    def job(self) -> SubmitRequest:
        return a_job("trap '' TERM; while :; do sleep 600; done")

    @pytest.fixture
    async def runner(self, runner_socket: Path) -> AsyncIterator[RunnerApi]:
        async with a_session(runner_socket) as session:
            yield RunnerClient(
                session,
                dial=lambda: asyncio.open_unix_connection(str(runner_socket)),
                dial_answer=dial_to(runner_socket),
            )


async def statuses(socket: Path, routes: Iterable[tuple[str, str]]) -> dict[str, int]:
    """What each route answers to a request without content, about a task that is not there."""
    found = {}
    async with a_session(socket) as session:
        for method, path in routes:
            body = None if method == "GET" else b"{}"
            async with session.request(method, path.replace("{id}", "t9"), data=body) as answer:
                found[f"{method} {path}"] = answer.status
    return found


async def test_no_route_of_the_shim_fails(shim_of_bundle: ShimProcess) -> None:
    table = Routes(cast(Any, None)).table()
    routes = [(route.method, route.path) for route in table]
    answers = await statuses(shim_of_bundle.socket, routes)
    assert {route: status for route, status in answers.items() if status >= 500} == {}


async def test_a_node_gives_its_metrics_to_prometheus(shim_of_bundle: ShimProcess) -> None:
    async with a_session(shim_of_bundle.socket) as session, session.get("/metrics") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
        assert "\nfairlead_node_cpu_cores 4.0\n" in await answer.text()


async def test_no_route_of_the_runner_fails(runner_socket: Path) -> None:
    table = make_server(cast(Any, None), cast(Any, None)).routes
    routes = [(method, path) for path, methods in table.items() for method in methods]
    answers = await statuses(runner_socket, routes)
    assert {route: status for route, status in answers.items() if status >= 500} == {}


@pytest.mark.parametrize(("tree", "packages"), [("python", ON_NODES), ("runtime", IN_CONTAINERS)])
def test_each_module_that_agents_import_is_there(
    bundle: Bundle, tree: str, packages: tuple[str, ...]
) -> None:
    """Also the ones that they import late."""
    home = f"{INSTALLED}/runtime" if tree == "runtime" else f"{INSTALLED}/{bundle.version}/python"
    python = interpreter(bundle.folder / tree, home)
    argv = [*installed(bundle), python, *ISOLATED, "-c", IMPORT_ALL]
    asked = json.dumps([imported_by(packages), []])
    done = subprocess.run(
        argv, input=asked, capture_output=True, text=True, timeout=LONG, check=True
    )
    assert json.loads(done.stdout) == {}
