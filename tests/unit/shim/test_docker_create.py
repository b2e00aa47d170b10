"""A container is made while its image is looked at; what that finds counts before it starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from shim.engines.docker.engine import DockerEngine
from shim.errors import EngineError
from tests.support.waiting import LONG
from tests.unit.shim.parts import CONTAINER, settings

FIFO = "eyJtb2RlIjogMzM1NTQ0MzJ9"
"""`{"mode": 33554432}` in base64."""


class Api:
    """Looks at an image only while the task's container is there. `tells`: of each file in it."""

    base_url, api_version, timeout = "http+docker://localhost", "1.41", 60

    def __init__(self, tells: str | None = None) -> None:
        self.is_made = threading.Event()
        self.looks = 0
        self._tells = tells

    def close(self) -> None:
        """Nothing is open."""

    def create_host_config(self, **asked: Any) -> dict[str, Any]:
        return asked

    def containers(self, **asked: Any) -> list[dict[str, Any]]:
        return []

    def create_container(self, *image: str, name: str, **asked: Any) -> dict[str, str]:
        if name == "fairlead-t":
            self.is_made.set()
        else:
            self.looks += 1
        return {"Id": name}

    def remove_container(self, container_id: str, **asked: Any) -> None:
        assert container_id != "fairlead-t"

    def head(self, address: str, **asked: Any) -> requests.Response:
        if not self.is_made.wait(LONG):
            raise AssertionError("the task's container is made after the look")
        answer = requests.Response()
        answer.status_code = 404 if self._tells is None else 200
        answer.headers["X-Docker-Container-Path-Stat"] = self._tells or ""
        return answer


def engine_on(api: Api, folder: Path) -> DockerEngine:
    engine = DockerEngine(settings(folder), "install", api)
    engine._user_files.open(api)
    return engine


async def test_an_image_is_looked_at_while_its_first_container_is_made(tmp_path: Path) -> None:
    api = Api()
    engine = engine_on(api, tmp_path)
    try:
        assert await engine.create(CONTAINER) == "fairlead-t"
        assert await engine.create(msgspec.structs.replace(CONTAINER, run_id="r2")) == "fairlead-t"
        assert api.looks == 1
    finally:
        await engine.close()


async def test_a_container_of_an_image_that_is_refused_is_not_given_to_be_started(
    tmp_path: Path,
) -> None:
    api = Api(FIFO)
    engine = engine_on(api, tmp_path)
    try:
        with pytest.raises(EngineError, match="/etc/passwd of the image"):
            await engine.create(CONTAINER)
        assert api.is_made.is_set()
    finally:
        await engine.close()
