"""What connects a container goes while the engine removes it; its address is free after that."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests

from shim.engines.docker.engine import DockerEngine
from shim.errors import EngineError
from tests.support.waiting import LONG
from tests.unit.shim.parts import settings

LABELS = {"fairlead.install": "install", "fairlead.task": "t"}


class Api:
    """One container of this name, whose removal takes until its connection was taken away."""

    def __init__(
        self, log: list[str], *, runs: bool, why_not: str | None = None, name: str = "fairlead-t"
    ) -> None:
        self.cut = threading.Event()
        self._log, self._runs, self._why_not = log, runs, why_not
        self._name = name

    def close(self) -> None:
        """Nothing is open."""

    def containers(self, *, all: bool, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        asked = dict(one.split("=") for one in filters["label"])
        return [{"Id": "c"}] if all and asked == LABELS and self._name else []

    def inspect_container(self, name: str) -> dict[str, Any]:
        if name not in ("c", self._name):
            answer = requests.Response()
            answer.status_code = 404
            raise docker.errors.NotFound("no such container", answer, "no such container")
        return {"Id": "c", "State": {"Running": self._runs}, "Config": {"Labels": LABELS}}

    def remove_container(self, container_id: str, **asked: Any) -> None:
        if not self._runs and not self.cut.wait(LONG):
            raise AssertionError("its connection stays until it is removed")
        if self._why_not is not None:
            answer = requests.Response()
            answer.status_code = 500
            raise docker.errors.APIError(self._why_not, answer, self._why_not)
        self._log.append("container")


class Networks:
    """Notes what it is asked."""

    def __init__(self, log: list[str], api: Api) -> None:
        self._log, self._api = log, api

    async def ended(self, task_id: str) -> None:
        self._log.append("connection")
        self._api.cut.set()

    async def removed(self, task_id: str) -> None:
        self._log.append("address")

    async def close(self) -> None:
        """Nothing is open."""


async def removed(
    folder: Path, *, runs: bool, why_not: str | None = None, name: str = "fairlead-t"
) -> list[str]:
    """Return what was taken away, in this order, also when the engine refused."""
    log: list[str] = []
    api = Api(log, runs=runs, why_not=why_not, name=name)
    engine = DockerEngine(settings(folder), "install", api)
    networks: Any = Networks(log, api)
    engine._networks = networks
    try:
        if why_not is None:
            await engine.remove("t")
        else:
            with pytest.raises(EngineError, match=why_not):
                await engine.remove("t")
    finally:
        await engine.close()
    return log


async def test_what_connects_a_container_goes_while_the_container_does(tmp_path: Path) -> None:
    assert await removed(tmp_path, runs=False) == ["connection", "container", "address"]


async def test_a_container_that_runs_keeps_its_connection_until_it_is_gone(tmp_path: Path) -> None:
    assert await removed(tmp_path, runs=True) == ["container", "address"]


async def test_no_address_is_free_while_its_container_cannot_be_removed(tmp_path: Path) -> None:
    assert await removed(tmp_path, runs=False, why_not="busy") == ["connection"]
    assert await removed(tmp_path, runs=True, why_not="busy") == []


async def test_a_container_that_was_renamed_by_hand_is_removed_before_its_address_is_free(
    tmp_path: Path,
) -> None:
    assert await removed(tmp_path, runs=True, name="renamed") == ["container", "address"]
    assert await removed(tmp_path, runs=True, name="") == ["address"]
