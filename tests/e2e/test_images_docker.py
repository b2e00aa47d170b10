"""Images through a real dockerd: why one cannot be had, and what makes room for the next."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines.base import ImageError, ImageProblem
from shim.engines.docker.engine import DockerEngine
from shim.image_cache.access import ImageAccess
from shim.image_cache.images import ImageRecord, Images, Watermarks
from shim.settings import Settings
from tests.doubles.records import MemoryRecords
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon, images_in_containerd
from tests.support.docker_registry import DockerRegistry
from tests.support.fake_registry import MANIFEST, FakeRegistry
from tests.support.registry import Registry
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

RIGHT = RegistryAuth(username="anna", password="s3cret")
WRONG = RegistryAuth(username="anna", password="hunter2")
SMALL_DISK = "128m" if images_in_containerd() else "64m"
"""containerd keeps an image as it was sent, too."""


def nothing(now: PullProgress) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def private(
    dockerd: DockerDaemon, busybox_image: str, testbed_folder: Path
) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(testbed_folder / "registry", "anna:s3cret")
    registry.start()
    registry.push(dockerd, busybox_image, "team/tool:1")
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def small_dockerd() -> Iterator[DockerDaemon]:
    """Its images share a small disk."""
    folder = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))
    run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "none", folder])
    daemon = DockerDaemon(folder)
    daemon.start()
    yield daemon
    daemon.stop()
    run(["umount", "--lazy", folder])
    shutil.rmtree(folder)


@asynccontextmanager
async def engine_of(
    dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncIterator[DockerEngine]:
    monkeypatch.setenv("DOCKER_HOST", dockerd.url)
    made = DockerEngine(Settings(data=folder, socket=folder / "shim.sock", gid=0), "install")
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def engine(
    dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[DockerEngine]:
    async with engine_of(dockerd, monkeypatch, tmp_path) as made:
        yield made


@pytest.fixture
async def small_engine(
    small_dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[DockerEngine]:
    async with engine_of(small_dockerd, monkeypatch, tmp_path) as made:
        yield made


@pytest.fixture
async def registries() -> AsyncIterator[list[Registry]]:
    """Each has an image of 15 MB that shares nothing with the others."""
    made = [await asyncio.to_thread(Registry, None, 15 << 20) for _ in range(5)]
    for registry in made:
        await registry.open()
    yield made
    for registry in made:
        await registry.close()


async def refusal(
    engine: DockerEngine, reference: str, auth: RegistryAuth | None = None
) -> ImageError:
    with pytest.raises(ImageError) as caught:
        await engine.pull(reference, auth, nothing)
    return caught.value


async def test_a_private_image_is_pulled_with_its_password(
    engine: DockerEngine, private: DockerRegistry
) -> None:
    reference = f"{private.address}/team/tool:1"
    image = await engine.pull(reference, RIGHT, nothing)
    by_digest = await engine.local_image(f"{private.address}/team/tool@{image.digest}")
    assert by_digest == image
    assert await engine.remove_image(reference)
    assert await engine.local_image(reference) is None


async def test_the_registry_is_asked_with_the_credentials_that_are_given_and_no_others(
    engine: DockerEngine, private: DockerRegistry
) -> None:
    reference = f"{private.address}/team/tool:1"
    image = await engine.pull(reference, RIGHT, nothing)
    assert (image.by_id, image.digest is None) == (False, False)
    await engine.ask_registry(reference, image.digest, RIGHT)
    for auth, digest, problem in (
        (None, image.digest, ImageProblem.REFUSED),
        (WRONG, image.digest, ImageProblem.REFUSED),
        (RIGHT, f"sha256:{'0' * 64}", ImageProblem.MISSING),
    ):
        with pytest.raises(ImageError, match=f"{private.address}/team/tool:1") as caught:
            await engine.ask_registry(reference, digest, auth)
        assert caught.value.problem is problem
    by_id = await engine.local_image(image.id)
    assert by_id is not None
    assert (by_id.by_id, by_id.digest) == (True, None)
    assert await engine.remove_image(reference)
    with pytest.raises(ImageError) as silent:
        await engine.ask_registry("127.0.0.1:9/tool:1", None, RIGHT)
    assert silent.value.problem is ImageProblem.UNREACHABLE


async def test_a_registry_that_names_anothers_image_does_not_prove_that_it_has_it(
    engine: DockerEngine, private: DockerRegistry
) -> None:
    """dockerd takes the image from the node: the registry need not have it."""
    reference = f"{private.address}/team/tool:1"
    image = await engine.pull(reference, RIGHT, nothing)
    await engine.prove_content(reference, image, RIGHT)
    for auth in (None, WRONG):
        with pytest.raises(ImageError, match="did not show that it has it"):
            await engine.prove_content(reference, image, auth)
    rogue = FakeRegistry()
    try:
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}
        manifest["config"] = {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": 1,
            "digest": image.id,
        }
        content = json.dumps(manifest).encode()
        rogue.put("manifests", content)
        rogue.put("manifests", content, "1")
        if images_in_containerd():
            # Its ids are digests of manifests, which it takes from the answer's header.
            rogue.claimed = image.id
        named = f"{rogue.repository}:1"
        stolen = await engine.pull(named, None, nothing)
        assert stolen.id == image.id, "dockerd compares ids alone"
        with pytest.raises(ImageError, match="answers 404") as caught:
            await engine.prove_content(named, stolen, None)
        assert caught.value.problem is ImageProblem.REFUSED
    finally:
        rogue.close()
    assert await engine.remove_image(named)
    assert await engine.remove_image(reference)


async def test_a_registry_that_never_answers_is_no_yes(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.engines.docker.images.ASK_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reference = f"127.0.0.1:{silent.getsockname()[1]}/tool:1"
        with pytest.raises(ImageError, match=r"did not say within 0.5 s") as caught:
            await engine.ask_registry(reference, None, None)
    assert caught.value.problem is ImageProblem.STALLED


async def test_five_ways_to_fail_have_five_names_and_sentences(
    engine: DockerEngine, small_engine: DockerEngine, private: DockerRegistry
) -> None:
    too_large = await asyncio.to_thread(Registry, None, 80 << 20)
    await too_large.open()
    tool = f"{private.address}/team/tool"
    try:
        errors = [
            await refusal(engine, f"{tool}:1", WRONG),
            await refusal(engine, f"{tool}:none", RIGHT),
            await refusal(engine, "127.0.0.1:9/tool:1"),
            await refusal(engine, "Not A Name"),
            await refusal(small_engine, too_large.name),
        ]
    finally:
        await too_large.close()
    sentences = [
        f"the registry refused the user name or password of registry_auth for {tool}:1",
        f"there is no image {tool}:none",
        "the registry of 127.0.0.1:9/tool:1 cannot be reached from this node",
        "'Not A Name' is not a valid image name",
        f"the node's disk is too full for {too_large.name}",
    ]
    assert [error.problem for error in errors] == [
        ImageProblem.REFUSED,
        ImageProblem.MISSING,
        ImageProblem.UNREACHABLE,
        ImageProblem.BAD_NAME,
        ImageProblem.NO_SPACE,
    ]
    for error, sentence in zip(errors, sentences, strict=True):
        assert str(error).startswith(sentence)
        assert "hunter2" not in str(error)


async def test_a_pull_shows_what_is_unpacked_too(
    engine: DockerEngine, registries: list[Registry]
) -> None:
    seen: list[PullProgress] = []
    await engine.pull(registries[0].name, None, seen.append)
    await eventually(lambda: seen and seen[-1].extracted == seen[-1].total > 12_000_000)
    assert await engine.remove_image(registries[0].name)


async def test_a_full_disk_loses_the_images_that_nobody_uses_and_no_other(
    small_engine: DockerEngine, small_dockerd: DockerDaemon, registries: list[Registry]
) -> None:
    records: MemoryRecords[ImageRecord] = MemoryRecords()
    access = ImageAccess(small_engine, MemoryRecords())
    images = Images(small_engine, records, access, 60.0, Watermarks(high=0.55, low=0.4))
    used, idle, wanted, last, _ = [registry.name for registry in registries]
    try:
        await images.pull(used, None, "t1", nothing)
        create = ("create", "--name", "user", "--network", "none", used)
        await asyncio.to_thread(small_dockerd.docker, *create)
        await images.let_go("t1", used)
        for name in (idle, wanted):
            await images.pull(name, None, name, nothing)
        await images.let_go(idle, idle)
        await images.pull(last, None, last, nothing)

        async def idle_is_gone() -> bool:
            return await small_engine.local_image(idle) is None

        gone: bool = await eventually(idle_is_gone)
        assert gone
        await images.collect()
        here = [name for name in (used, wanted, last) if await small_engine.local_image(name)]
        assert here == [used, wanted, last]
        assert not await small_engine.remove_image(used)
    finally:
        await images.close()
        await asyncio.to_thread(small_dockerd.docker, "rm", "user")
        await asyncio.to_thread(small_dockerd.docker, "image", "prune", "-af")


async def test_a_pull_that_does_not_fit_makes_room_by_itself(
    small_engine: DockerEngine, registries: list[Registry]
) -> None:
    images = Images(small_engine, MemoryRecords(), ImageAccess(small_engine, MemoryRecords()), 60.0)
    names = [registry.name for registry in registries]
    try:
        for name in names:
            await images.pull(name, None, name, nothing)
            await images.let_go(name, name)
        assert await small_engine.local_image(names[-1]) is not None
        assert await small_engine.local_image(names[0]) is None
    finally:
        await images.close()
