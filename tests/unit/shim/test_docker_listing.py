"""One list of all containers spares a new life of the shim a question for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from shim.engines.base import EngineUnavailable, NetworkChoice
from shim.engines.docker.choice import ChosenNetworks
from shim.engines.docker.engine import DockerEngine
from shim.engines.docker.networks import RunNetworks
from shim.settings import NetworkKind
from tests.support.waiting import eventually
from tests.unit.shim.parts import settings

LABELS = {"fairlead.install": "install", "fairlead.task": "t"}
PORTS = [
    {"IP": "127.0.0.1", "PrivatePort": 22, "PublicPort": 32768, "Type": "tcp"},
    {"PrivatePort": 80, "Type": "tcp"},
]


class Api:
    """One container, which runs until `state` says otherwise."""

    def __init__(self) -> None:
        self.state = "running"
        self.inspected = 0
        self.silent = False
        self.during_list: Callable[[], None] = lambda: None

    def containers(self, **asked: Any) -> list[dict[str, Any]]:
        listed = [{"Id": "c", "State": self.state, "Labels": LABELS, "Ports": PORTS}]
        self.during_list()
        return listed

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        self.inspected += 1
        if self.silent:
            raise requests.exceptions.ConnectionError("gone")
        return {"State": {"Status": self.state, "ExitCode": 3}, "NetworkSettings": {}}

    def close(self) -> None:
        """Nothing is open."""

    def info(self) -> dict[str, Any]:
        return {"SystemTime": "2026-11-21T17:21:28Z", "LiveRestoreEnabled": True}

    def events(self, **asked: Any) -> Iterator[dict[str, Any]]:
        return iter(())


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def engine(api: Api, tmp_path: Path) -> AsyncIterator[DockerEngine]:
    engine = DockerEngine(settings(tmp_path), "install", api)
    yield engine
    await engine.close()


async def test_a_container_that_was_listed_is_not_asked_for(api: Api, engine: DockerEngine) -> None:
    await engine.list()
    waiting = asyncio.create_task(engine.wait("c"))
    ports = [await engine.published_port("c", port) for port in (22, 80)]
    assert (ports, api.inspected, waiting.done()) == ([32768, None], 0, False)
    api.state = "exited"
    engine.hint("c")
    assert (await waiting).exit_code == 3


class Wires(RunNetworks):
    """Networks that have seen the started container run; `meanwhile` happens then."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    async def started(self, container_id: str) -> bool:
        self._meanwhile()
        return True

    async def close(self) -> None:
        """Nothing is open."""


async def start_with_wires(
    engine: DockerEngine, api: Api, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]
) -> None:
    choice = NetworkChoice(kind=NetworkKind.AGENT)
    monkeypatch.setattr(engine, "_networks", ChosenNetworks(Wires(meanwhile), choice))
    await engine.start("c")
    api.inspected = 0


async def test_a_container_that_was_connected_is_not_asked_for_again(
    api: Api, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_with_wires(engine, api, monkeypatch, lambda: None)
    waiting = asyncio.create_task(engine.wait("c"))
    assert (await engine.published_port("c", 22), api.inspected) == (None, 0)
    api.state = "exited"
    engine.hint("c")
    assert (await waiting).exit_code == 3


@pytest.mark.parametrize("heard", ["c", None])
async def test_an_end_that_is_heard_while_a_container_is_connected_is_not_missed(
    api: Api, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, heard: str | None
) -> None:
    def end() -> None:
        api.state = "exited"
        engine.hint(heard)

    await start_with_wires(engine, api, monkeypatch, end)
    assert (await engine.wait("c")).exit_code == 3


async def test_an_end_that_is_heard_before_somebody_waits_is_not_missed(
    api: Api, engine: DockerEngine
) -> None:
    await engine.list()
    api.state = "exited"
    engine.hint("c")
    assert (await engine.wait("c")).exit_code == 3


@pytest.mark.parametrize("heard", ["c", None])
async def test_an_event_heard_while_the_list_was_made_outdates_it(
    api: Api, engine: DockerEngine, heard: str | None
) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        api.state = "exited"
        loop.call_soon_threadsafe(engine.hint, heard)

    api.during_list = end
    (found,) = await engine.list()
    assert (found.state.value, (await engine.wait("c")).exit_code) == ("running", 3)


async def test_a_stream_of_events_that_began_anew_makes_everybody_ask_again(
    api: Api, engine: DockerEngine
) -> None:
    await engine.list()
    waiting = asyncio.create_task(engine.wait("c"))
    await eventually(lambda: engine.exits.waits_for("c"))
    engine.hint(None)
    await eventually(lambda: api.inspected == 1)
    api.state = "exited"
    engine.hint("c")
    assert (await waiting).exit_code == 3


async def test_a_container_that_a_later_list_finds_ended_is_asked_for(
    api: Api, engine: DockerEngine
) -> None:
    await engine.list()
    api.state = "exited"
    await engine.list()
    assert (await engine.wait("c")).exit_code == 3


async def test_nothing_is_kept_of_containers_without_a_waiter(
    api: Api, engine: DockerEngine
) -> None:
    for tell in (engine.exits.note_stop, engine.hint):
        tell("c")
    api.state = "exited"
    assert not (await engine.wait("c")).stopped


async def test_events_of_an_awaited_container_are_kept_until_its_end(
    api: Api, engine: DockerEngine
) -> None:
    waiting = asyncio.create_task(engine.wait("c"))
    await eventually(lambda: engine.exits.waits_for("c"))
    api.state = "exited"
    engine.exits.note_stop("c")
    engine.hint("c")
    assert (await waiting).stopped
    assert not (await engine.wait("c")).stopped


async def test_a_stop_is_remembered_when_the_engine_falls_silent_before_the_end(
    api: Api, engine: DockerEngine
) -> None:
    """An engine that is stopped stops its containers, says so, and is gone."""
    waiting = asyncio.create_task(engine.wait("c"))
    await eventually(lambda: engine.exits.waits_for("c"))
    api.silent = True
    engine.exits.note_stop("c")
    engine.hint("c")
    with pytest.raises(EngineUnavailable):
        await waiting
    api.silent, api.state = False, "exited"
    assert (await engine.wait("c")).stopped
