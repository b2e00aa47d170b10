"""A container is started although somebody else has the ports that the engine tried first, and what
its network needs is done meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests

from shim.engines.base import NodeFault, PortsTaken
from shim.engines.docker.engine import DockerEngine
from tests.support.waiting import LONG
from tests.unit.shim.parts import settings

TAKEN = "Error starting userland proxy: listen tcp4 127.0.0.1:32821: bind: address already in use"


class Api:
    """Refuses so many starts of a container that was created."""

    def __init__(self, refusals: int, why: str) -> None:
        self.refusals, self.starts = refusals, 0
        self._why = why

    def close(self) -> None:
        """Nothing is open."""

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        return {"State": {"Status": "created"}}

    def start(self, container_id: str) -> None:
        self.starts += 1
        if self.starts <= self.refusals:
            answer = requests.Response()
            answer.status_code = 500
            raise docker.errors.APIError(self._why, answer, self._why)


async def start_on(api: Api, folder: Path, networks: Any = None) -> None:
    engine = DockerEngine(settings(folder), "install", api)
    engine._networks = networks
    try:
        await engine.start("c")
    finally:
        await engine.close()


async def test_ports_of_others_are_passed_over(tmp_path: Path) -> None:
    api = Api(2, TAKEN)
    await start_on(api, tmp_path)
    assert api.starts == 3


async def test_a_node_without_a_free_port_is_said_to_be_so(tmp_path: Path) -> None:
    api = Api(1000, TAKEN)
    with pytest.raises(PortsTaken, match="address already in use") as caught:
        await start_on(api, tmp_path)
    assert (caught.value.reason, api.starts) == ("ports_binding_failed", 5)


async def test_any_other_refusal_is_final_and_told_as_whose_fault_it_is(tmp_path: Path) -> None:
    api = Api(1, "no such device")
    with pytest.raises(NodeFault, match="no such device"):
        await start_on(api, tmp_path)
    assert api.starts == 1


class Networks:
    """Notes what it is asked. `why_not`: why the rules of a wire cannot be written."""

    def __init__(self, log: list[str], why_not: str | None = None) -> None:
        self.written = threading.Event()
        self._log, self._why_not = log, why_not

    async def starting(self, container_id: str) -> None:
        if self._why_not is not None:
            raise NodeFault(self._why_not)
        self._log.append("rules")
        self.written.set()

    async def started(self, container_id: str) -> bool:
        self._log.append("wire")
        return True

    def distrust(self, message: str) -> None:
        """No network of the engine is meant."""

    async def close(self) -> None:
        """Nothing is open."""


class Waiting(Api):
    """Answers a start once the rules are written, and tells what it has started."""

    def __init__(self, log: list[str], networks: Networks, *, refusals: int = 0) -> None:
        super().__init__(refusals, "no such device")
        self._log, self._networks = log, networks

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        return {"State": {"Status": "running" if "container" in self._log else "created"}}

    def start(self, container_id: str) -> None:
        if not self._networks.written.wait(LONG):
            raise AssertionError("the rules are written after the start")
        super().start(container_id)
        self._log.append("container")


async def test_the_rules_of_a_wire_are_written_while_the_engine_starts_its_container(
    tmp_path: Path,
) -> None:
    log: list[str] = []
    networks = Networks(log)
    await start_on(Waiting(log, networks), tmp_path, networks)
    assert log == ["rules", "container", "wire"]


async def test_a_container_that_is_not_started_gets_no_wire(tmp_path: Path) -> None:
    log: list[str] = []
    networks = Networks(log)
    with pytest.raises(NodeFault, match="no such device"):
        await start_on(Waiting(log, networks, refusals=1), tmp_path, networks)
    assert log == ["rules"]


async def test_a_container_whose_rules_are_refused_gets_its_wire_when_its_start_is_repeated(
    tmp_path: Path,
) -> None:
    """It runs without any network until then, and its start has an end before the error is told."""
    log: list[str] = []
    networks = Networks(log, "nft: refused")
    networks.written.set()
    api = Waiting(log, networks)
    with pytest.raises(NodeFault, match="nft: refused"):
        await start_on(api, tmp_path, networks)
    assert log == ["container"]
    await start_on(api, tmp_path, networks)
    assert (log, api.starts) == (["container", "wire"], 1)
