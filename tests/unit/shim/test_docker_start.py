"""A container is started although somebody else has the ports that the engine tried first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests

from shim.engines.base import NodeFault, PortsTaken
from shim.engines.docker.engine import DockerEngine
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


async def start_on(api: Api, folder: Path) -> None:
    engine = DockerEngine(settings(folder), "install", api)
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
