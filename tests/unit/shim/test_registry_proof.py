"""A registry proves that it has an image by content that hashes to the image's id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead.wire.shim import RegistryAuth
from shim.engines.base import ImageError, ImageInfo, ImageProblem
from shim.engines.docker import registry as registry_module
from shim.engines.docker.images import DockerImages
from shim.engines.docker.registry import prove, prove_any
from tests.support.fake_registry import BASIC, FakeRegistry, digest_of

LOCAL = {"InsecureRegistryCIDRs": ["127.0.0.0/8"]}
ANNA = RegistryAuth(username="anna", password="s3cret")


CONFIG = b'{"config": {"Cmd": ["tool"]}, "rootfs": {"diff_ids": []}}'
IMAGE_ID = digest_of(CONFIG)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    made = FakeRegistry()
    yield made
    made.close()


def manifest(config: str = IMAGE_ID) -> bytes:
    return json.dumps({"schemaVersion": 2, "config": {"digest": config}, "layers": []}).encode()


def refused(registry: FakeRegistry, digest: str) -> str:
    with pytest.raises(ImageError, match="did not show that it has it") as caught:
        prove(registry.repository, digest, IMAGE_ID, None, LOCAL)
    assert caught.value.problem is ImageProblem.REFUSED
    return str(caught.value)


def test_a_registry_that_serves_the_configuration_has_the_image(registry: FakeRegistry) -> None:
    digest = registry.put("manifests", manifest())
    registry.put("blobs", CONFIG)
    prove(registry.repository, digest, IMAGE_ID, None, LOCAL)
    index = json.dumps({"manifests": [{"digest": digest}]}).encode()
    prove(registry.repository, registry.put("manifests", index), IMAGE_ID, None, LOCAL)
    prove(registry.repository, digest, digest, None, LOCAL)  # an engine whose ids are manifests


def test_one_of_the_digests_that_an_engine_mixes_is_enough(registry: FakeRegistry) -> None:
    digest = registry.put("manifests", manifest())
    registry.put("blobs", CONFIG)
    elsewhere = [digest_of(b"one"), digest_of(b"another")]
    prove_any(registry.repository, [elsewhere[0], digest, elsewhere[1]], IMAGE_ID, None, LOCAL)
    with pytest.raises(ImageError, match="answers 404"):
        prove_any(registry.repository, elsewhere, IMAGE_ID, None, LOCAL)


def test_a_registry_that_only_names_the_configuration_has_it_not(registry: FakeRegistry) -> None:
    digest = registry.put("manifests", manifest())
    assert "answers 404" in refused(registry, digest)
    registry.put("blobs", b"something else", IMAGE_ID)
    assert "serves nothing of the image" in refused(registry, digest)
    registry.put("blobs", b"x" * (9 << 20), IMAGE_ID)
    assert "too long" in refused(registry, digest)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"null", b"{" * 100_000, b'{"config": 7}'),
        *(b'{"manifests": 7}', b'{"manifests": [7]}', b'{"manifests": {"a": 1}}'),
    ],
)
def test_an_odd_manifest_is_no_proof(registry: FakeRegistry, body: bytes) -> None:
    refused(registry, registry.put("manifests", body))


def test_a_manifest_under_a_digest_that_is_not_its_own_is_no_proof(registry: FakeRegistry) -> None:
    registry.put("blobs", CONFIG)
    digest = registry.put("manifests", manifest(), digest_of(b"another"))
    assert "not the one that it names" in refused(registry, digest)
    assert "names no digest" in refused(registry, "../../../token")


@pytest.mark.parametrize("kind", ["Bearer", "Basic"])
def test_the_runs_credentials_are_sent_where_the_registry_wants_them(
    registry: FakeRegistry, kind: str
) -> None:
    digest = registry.put("manifests", manifest())
    registry.put("blobs", CONFIG)
    registry.challenge = f'{kind} realm="http://{registry.host}/token",service="s",scope="pull"'
    prove(registry.repository, digest, IMAGE_ID, ANNA, LOCAL)
    assert registry.logins == ([BASIC, BASIC] if kind == "Bearer" else [])
    registry.challenge = 'Digest realm="x"'
    with pytest.raises(ImageError, match="refuses these credentials"):
        prove(registry.repository, digest, IMAGE_ID, ANNA, LOCAL)


def test_a_registry_without_tls_is_asked_only_if_the_engine_takes_it(
    registry: FakeRegistry,
) -> None:
    digest = registry.put("manifests", manifest())
    registry.put("blobs", CONFIG)
    named = {"IndexConfigs": {registry.host: {"Secure": False}}}
    prove(registry.repository, digest, IMAGE_ID, None, named)
    with pytest.raises(ImageError, match="SSLError"):
        prove(registry.repository, digest, IMAGE_ID, None, {})


@pytest.mark.parametrize("token", [b"[]", b"7", b"x" * (9 << 20), b"{"])
def test_an_odd_token_is_no_proof(registry: FakeRegistry, token: bytes) -> None:
    digest = registry.put("manifests", manifest())
    registry.challenge = f'Bearer realm="http://{registry.host}/token",service="s"'
    registry.token = token
    with pytest.raises(ImageError, match="did not show that it has it"):
        prove(registry.repository, digest, IMAGE_ID, ANNA, LOCAL)


async def test_a_registry_that_never_answers_is_left_after_a_while(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread goes on; the task does not wait for it."""
    may_end, ended = threading.Event(), threading.Event()

    def never(*named: object) -> None:
        may_end.wait()
        ended.set()

    monkeypatch.setattr(registry_module, "prove", never)

    async def call(act: Callable[[], Any]) -> Any:
        return act()

    images = DockerImages(call, contextlib.nullcontext, prove_seconds=0.05)
    images.open(Api(), "", lambda: None)
    image = ImageInfo(id=IMAGE_ID, digest=digest_of(b"manifest"))
    try:
        with pytest.raises(ImageError, match=r"did not show within 0.05 s that it has") as caught:
            await images.prove(registry.repository, image, None)
        assert caught.value.problem is ImageProblem.STALLED
    finally:
        may_end.set()
        await asyncio.to_thread(ended.wait)


class Api:
    def info(self) -> dict[str, Any]:
        return {}
