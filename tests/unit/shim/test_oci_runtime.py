"""The OCI runtime is chosen by a trial, for which a container waits for a while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import msgspec
import pytest
import requests

from fairlead.wire.node import EngineKind, Finding
from fairlead.wire.shim import NetworkMode
from shim.engines.docker.engine import DockerEngine
from shim.engines.docker.examination import Trial, try_container
from shim.engines.docker.oci_runtime import OciRuntime, to_try
from shim.errors import EngineError
from shim.examination import bad, ok
from shim.gpus.nvidia.nvml import NVIDIA
from shim.settings import AUTO_RUNTIME
from tests.support.waiting import eventually
from tests.unit.shim.parts import settings
from tests.unit.shim.test_docker_request import SPEC

KNOWS_CRUN: dict[str, Any] = {"Runtimes": {"runc": {}, "crun": {}}, "DefaultRuntime": "runc"}
KNOWS_RUNC: dict[str, Any] = {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}
WORKS, FAILS = ok("a container with the runtime starts"), bad("a container ends with 1", "fix")
TRIED = ("crun", Trial(name="fairlead-trial-install", limits=True))


class Engine:
    """Takes the place of an engine's client and of tried starts in it. A trial ends once `go_on` is
    set."""

    def __init__(self, result: Finding | Exception) -> None:
        self.asked: list[tuple[str, Trial]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.knows = KNOWS_CRUN
        self.result = result

    def info(self) -> dict[str, Any]:
        return self.knows

    def attempt(self, api: Any, folder: Path, runtime: str, trial: Trial) -> Finding:
        self.asked.append((runtime, trial))
        self.begun.set()
        assert self.go_on.wait(60)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@contextlib.contextmanager
def opened(
    folder: Path, engine: Engine, asked: str | None = AUTO_RUNTIME, max_wait: float = 60.0
) -> Iterator[OciRuntime]:
    wanted = msgspec.structs.replace(settings(folder), oci_runtime=asked)
    choice = OciRuntime(
        wanted,
        "install",
        EngineKind.DOCKER,
        contextlib.nullcontext,
        attempt=engine.attempt,
        max_wait=max_wait,
    )
    choice.open(engine, engine.knows)
    try:
        yield choice
    finally:
        engine.go_on.set()


@pytest.mark.parametrize(
    ("result", "chosen"),
    [
        (WORKS, "crun"),
        (FAILS, None),
        (EngineError("refused"), None),
        # Whatever a trial meets, containers start.
        (KeyError("status"), None),
    ],
)
async def test_auto_is_crun_only_after_a_start_that_worked(
    tmp_path: Path, result: Finding | Exception, chosen: str | None
) -> None:
    engine = Engine(result)
    engine.go_on.set()
    with opened(tmp_path, engine) as choice:
        assert [await choice.name(), await choice.name()] == [chosen, chosen]
        assert engine.asked == [TRIED]
        await choice.close()


@pytest.mark.parametrize("asked", [None, "runc", "kata"])
async def test_a_named_runtime_is_not_tried(tmp_path: Path, asked: str | None) -> None:
    engine = Engine(WORKS)
    with opened(tmp_path, engine, asked) as choice:
        choice.again()
        assert await choice.name() == asked
        await choice.close()
    assert engine.asked == []


async def test_a_task_that_is_stopped_while_it_waits_ends_no_trial(tmp_path: Path) -> None:
    engine = Engine(WORKS)
    with opened(tmp_path, engine) as choice:
        waiting = asyncio.create_task(choice.name())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        engine.go_on.set()
        assert await choice.name() == "crun"
        await choice.close()


async def test_a_trial_that_hangs_holds_up_neither_containers_nor_the_end_of_the_shim(
    tmp_path: Path,
) -> None:
    engine = Engine(WORKS)
    with opened(tmp_path, engine, max_wait=0.01) as choice:
        assert [await choice.name(), await choice.name()] == [None, None]
        assert await asyncio.to_thread(engine.begun.wait, 60)
        await choice.close()
        assert not engine.go_on.is_set()


async def test_containers_get_crun_once_a_slow_trial_has_ended_well(tmp_path: Path) -> None:
    engine = Engine(WORKS)
    with opened(tmp_path, engine, max_wait=0.0) as choice:
        assert await choice.name() is None
        engine.go_on.set()
        chosen: str | None = await eventually(choice.name)
        assert chosen == "crun"
        await choice.close()


async def test_an_engine_that_begins_again_is_asked_and_tried_again(tmp_path: Path) -> None:
    engine = Engine(EngineError("the engine has restarted"))
    engine.go_on.set()
    with opened(tmp_path, engine) as choice:
        assert await choice.name() is None
        engine.result = WORKS
        choice.again()
        assert await choice.name() == "crun"
        engine.knows = KNOWS_RUNC
        choice.again()
        assert (await choice.name(), len(engine.asked)) == (None, 2)
        await choice.close()


async def test_a_trial_during_which_the_engine_restarts_is_repeated(tmp_path: Path) -> None:
    engine = Engine(EngineError("the engine has restarted"))
    with opened(tmp_path, engine) as choice:
        assert await asyncio.to_thread(engine.begun.wait, 60)
        choice.again()
        choice.again()
        engine.go_on.set()
        assert (await choice.name(), engine.asked) == (None, [TRIED, TRIED])
        await choice.close()


async def test_a_runtime_that_the_engine_no_longer_knows_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    engine = Engine(WORKS)
    engine.go_on.set()
    with opened(tmp_path, engine) as choice:
        assert await choice.name() == "crun"
        engine.knows = KNOWS_RUNC
        assert not choice.is_gone(EngineError("no space left on device"))
        for words in ("Unknown runtime specified crun", "unknown or invalid runtime name: crun"):
            assert choice.is_gone(EngineError(words))
        assert await choice.name() is None
        await choice.close()


@pytest.mark.parametrize(
    ("kind", "info"),
    [
        (EngineKind.PODMAN, KNOWS_CRUN),
        (EngineKind.DOCKER, {**KNOWS_CRUN, "DefaultRuntime": "nvidia"}),
        (EngineKind.DOCKER, {**KNOWS_CRUN, "DefaultRuntime": "crun"}),
        (EngineKind.DOCKER, KNOWS_RUNC),
        (EngineKind.DOCKER, {}),
    ],
)
def test_the_operators_own_default_is_kept(kind: EngineKind, info: dict[str, Any]) -> None:
    assert to_try(kind, info) is None
    assert to_try(EngineKind.DOCKER, KNOWS_CRUN) == "crun"


class FullDisk:
    """An engine that begins to answer an import before it fails."""

    def import_image_from_data(self, data: bytes, repository: str, tag: str) -> str:
        return '{"status":"Importing"}\r\n{"error":"write /x: no space left on device"}\r\n'


def test_an_import_that_fails_after_its_answer_began_is_told_in_the_engines_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(docker.errors.APIError, match="no space left on device"):
        try_container(FullDisk(), tmp_path)


class Creating:
    """An engine's client that creates containers, but none with an OCI runtime in `forgotten`."""

    api_version, base_url, timeout = "1.41", "http+docker://localhost", 60

    def __init__(self, forgotten: tuple[str, ...] = ()) -> None:
        self.created: list[object] = []
        self._forgotten = forgotten

    def info(self) -> dict[str, Any]:
        return {"Runtimes": {"runc": {}, "crun": {}, "nvidia": {}}, "DefaultRuntime": "runc"}

    def create_host_config(self, **asked: Any) -> dict[str, Any]:
        return asked

    def containers(self, **asked: Any) -> list[dict[str, Any]]:
        return []

    def head(self, address: str, **asked: Any) -> requests.Response:
        """The image has no lists of users and groups."""
        answer = requests.Response()
        answer.status_code = 404
        return answer

    def remove_container(self, container_id: str, **asked: Any) -> None:
        """Nothing was made."""

    def create_container(self, *of_a_look: object, **asked: Any) -> dict[str, str]:
        if of_a_look:
            return {"Id": "look"}
        runtime = asked["host_config"].get("Runtime")
        self.created.append(runtime)
        if runtime in self._forgotten:
            answer = requests.Response()
            answer.status_code = 400
            why = f"unknown or invalid runtime name: {runtime}"
            raise docker.errors.APIError(why, answer, why)
        return {"Id": "c"}

    def close(self) -> None:
        """Nothing is open."""


async def created(
    api: Creating, folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, **changes: Any
) -> list[object]:
    """Return the OCI runtimes with which a container was asked for, where a trial has worked."""

    async def crun(_: OciRuntime) -> str:
        return "crun"

    monkeypatch.setattr(OciRuntime, "name", crun)
    chosen = msgspec.structs.replace(settings(folder), oci_runtime=wanted)
    engine = DockerEngine(chosen, "install", api)
    on_host = msgspec.structs.replace(SPEC, network_mode=NetworkMode.HOST, **changes)
    assert await engine.create(on_host) == "c"
    await engine.close()
    return api.created


async def test_a_container_is_made_although_the_engine_has_forgotten_crun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Creating(forgotten=("crun",))
    assert await created(api, tmp_path, monkeypatch, AUTO_RUNTIME) == ["crun", None]


@pytest.mark.parametrize(("wanted", "used"), [(AUTO_RUNTIME, None), ("crun", "crun")])
async def test_gpus_that_a_hook_gives_come_with_the_runtime_that_tells_what_the_hook_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, used: str | None
) -> None:
    """With crun, an image that needs a newer driver would be the node's fault."""
    gpus = {"gpus": ("GPU-0",), "gpu_delivery": NVIDIA}
    assert await created(Creating(), tmp_path, monkeypatch, wanted, **gpus) == [used]
