"""Pulling through a real dockerd from a registry that can be slow, private or empty."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines.base import ImageError
from shim.engines.docker.engine import DockerEngine
from shim.settings import Settings
from tests.support.docker_daemon import DockerDaemon
from tests.support.registry import Registry
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e

BEFORE_THE_ENGINE = 25.0
"""Seconds: the engine itself waits for half a minute before it answers."""


@pytest.fixture
async def engine(
    dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DockerEngine]:
    monkeypatch.setenv("DOCKER_HOST", dockerd.url)
    folder = tmp_path_factory.mktemp("shim")
    engine = DockerEngine(Settings(data=folder, socket=folder / "shim.sock", gid=0), "install")
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    await registry.open()
    yield registry
    await registry.close()


@pytest.fixture
async def private() -> AsyncIterator[Registry]:
    registry = Registry(login="anna:s3cret")
    await registry.open()
    yield registry
    await registry.close()


async def test_a_pull_counts_its_bytes_and_tells_what_the_image_would_run(
    engine: DockerEngine, registry: Registry
) -> None:
    seen: list[PullProgress] = []
    image = await engine.pull(registry.name, None, seen.append)
    local = await engine.local_image(registry.name)
    assert (image.cmd, image.user, image.working_dir) == (("/data",), "7", "/srv")
    assert image == local
    assert image.digest is not None
    assert seen[-1].downloaded == seen[-1].total > 4_000_000


async def test_a_cancelled_pull_ends_at_once(engine: DockerEngine, registry: Registry) -> None:
    registry.gate.clear()
    moving = asyncio.Event()
    pull = asyncio.create_task(
        engine.pull(registry.name, None, lambda now: moving.set() if now.downloaded else None)
    )
    async with asyncio.timeout(LONG):
        await moving.wait()
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
    assert await engine.local_image(registry.name) is None


@pytest.fixture
def silent() -> Iterator[str]:
    """A registry that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_pull_from_a_silent_registry_is_cancelled_at_once(
    engine: DockerEngine, silent: str
) -> None:
    pull = asyncio.create_task(engine.pull(f"{silent}/x:1", None, lambda now: None))
    await engine.version()
    async with asyncio.timeout(BEFORE_THE_ENGINE):
        pull.cancel()
        await asyncio.wait({pull})
    assert pull.cancelled()


async def test_any_number_of_silent_registries_hold_up_nothing_else(
    engine: DockerEngine, registry: Registry, silent: str
) -> None:
    names = [f"{silent}/x{number}:1" for number in range(20)]
    pulls = [asyncio.create_task(engine.pull(name, None, lambda now: None)) for name in names]
    async with asyncio.timeout(BEFORE_THE_ENGINE):
        assert await engine.version() is not None
        assert await engine.list() == ()
    assert (await engine.pull(registry.name, None, lambda now: None)).cmd == ("/data",)
    for pull in pulls:
        pull.cancel()
    await asyncio.wait(pulls)


async def test_the_right_password_gets_the_image(engine: DockerEngine, private: Registry) -> None:
    auth = RegistryAuth(username="anna", password="s3cret")
    image = await engine.pull(private.name, auth, lambda now: None)
    assert image.cmd == ("/data",)


async def test_a_wrong_password_is_named_and_not_repeated(
    engine: DockerEngine, private: Registry
) -> None:
    auth = RegistryAuth(username="anna", password="hunter2")
    with pytest.raises(ImageError, match="refused the user name or password") as caught:
        await engine.pull(private.name, auth, lambda now: None)
    assert "hunter2" not in str(caught.value)


async def test_missing_credentials_are_asked_for(engine: DockerEngine, private: Registry) -> None:
    with pytest.raises(ImageError, match="set registry_auth"):
        await engine.pull(private.name, None, lambda now: None)


async def test_an_unknown_tag_is_said_not_to_exist(
    engine: DockerEngine, registry: Registry
) -> None:
    name = registry.name.removesuffix(":1") + ":2"
    with pytest.raises(ImageError, match=f"there is no image {name}"):
        await engine.pull(name, None, lambda now: None)
