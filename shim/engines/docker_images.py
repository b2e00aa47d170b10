"""The Docker engine's images: looked up, pulled, removed, and the disk that they fill."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from shim.engines import docker_pull
from shim.engines.base import EngineError, EngineUnavailable, ImageError, ImageInfo, Storage
from shim.engines.docker_errors import Conflict, NotFound
from shim.engines.own_thread import in_own_thread
from shim.image_access import pinned, repository_of
from shim.schemas import PullProgress, RegistryAuth

T = TypeVar("T")


class Call(Protocol):
    """Runs an act of docker-py in a thread, its errors in our words."""

    def __call__(self, act: Callable[[], T]) -> Awaitable[T]: ...


class DockerImages:
    """`in_our_words` is the part of `call` that is about errors."""

    def __init__(
        self, call: Call, in_our_words: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._call = call
        self._in_our_words = in_our_words
        self._api: Any = None
        self._folder = ""
        self._connect: Callable[[], Any] = lambda: None

    def open(self, api: Any, folder: str, connect: Callable[[], Any]) -> None:
        """`folder` is where the engine keeps its images; `connect` makes a client of docker-py for
        one pull."""
        self._api = api
        self._folder = folder
        self._connect = connect

    async def tags(self) -> tuple[str, ...]:
        found = await self._call(lambda: self._api.images())
        return tuple(sorted(tag for image in found for tag in image.get("RepoTags") or ()))

    async def local(self, reference: str) -> ImageInfo | None:
        try:
            found = await self._call(lambda: self._api.inspect_image(reference))
        except NotFound:
            return None
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise docker_pull.explain(reference, None, str(error)) from None
        return _image_info(reference, found)

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        pull = docker_pull.Pull(self._connect, reference, auth)
        try:
            with self._in_our_words():
                await pull.run(progress)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise docker_pull.explain(reference, auth, str(error)) from None
        image = await self.local(reference)
        if image is None:
            raise docker_pull.explain(reference, auth, "it is gone again right after the pull")
        return image

    async def ask(self, reference: str, digest: str | None, auth: RegistryAuth | None) -> None:
        """In a thread of its own, as a pull: a registry may never answer."""
        act = partial(docker_pull.ask, self._connect, pinned(reference, digest), auth)
        try:
            with self._in_our_words():
                await in_own_thread(act, "shim-ask")
        except (EngineUnavailable, ImageError):
            raise
        except EngineError as error:
            raise docker_pull.explain(reference, auth, str(error)) from None

    async def remove(self, reference: str) -> bool:
        """The engine itself refuses what a container uses, also one that has ended."""
        try:
            found = await self._call(lambda: self._api.inspect_image(reference))
            image_id = str(found["Id"])
            used = {"ancestor": image_id}
            if await self._call(lambda: self._api.containers(all=True, filters=used)):
                return False
            await self._call(lambda: self._api.remove_image(reference))
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    async def storage(self) -> Storage | None:
        try:
            found = await self._call(lambda: os.statvfs(self._folder))
        except OSError:
            return None
        total = found.f_blocks * found.f_frsize
        return Storage(used=total - found.f_bavail * found.f_frsize, total=total)


def _image_info(reference: str, found: dict[str, Any]) -> ImageInfo:
    config = found.get("Config") or {}
    digests = _by_repository(found.get("RepoDigests"))
    repository = repository_of(reference)
    return ImageInfo(
        id=found["Id"],
        digest=digests.get(repository, "").partition("@")[2] or None,
        by_id=repository not in {*digests, *_by_repository(found.get("RepoTags"))},
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        user=config.get("User") or "",
        working_dir=config.get("WorkingDir") or "",
    )


def _by_repository(names: list[str] | None) -> dict[str, str]:
    """Another repository may have compressed the same image into another manifest. The first name
    of a repository counts."""
    return {repository_of(name): name for name in reversed(names or ())}
