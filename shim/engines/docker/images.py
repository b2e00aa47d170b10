"""Images of the Docker engine: look up, pull, remove, and measure their disk.

A pull reports bytes as they come, can be cancelled, and fails with an error that a user can act on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import re
import secrets
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import docker.errors
import msgspec
import requests.exceptions
from docker.auth import encode_header
from docker.errors import create_api_error_from_http_exception
from docker.types import CancellableStream
from docker.utils import parse_repository_tag
from docker.utils.json_stream import json_stream

from fairlead.wire.decoders import decoder_of
from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines.base import (
    ContainerSpec,
    EngineUnavailable,
    ImageError,
    ImageInfo,
    ImageProblem,
    MountSpec,
    Storage,
    pinned,
    repository_of,
)
from shim.engines.docker import registry, request
from shim.engines.docker.api import Call, Conflict, NotFound, in_own_thread
from shim.engines.docker.dialect import DOCKER, Dialect
from shim.errors import EngineError

_MAX_DETAIL = 300
_MAX_READ = 1 << 14
_SNAPSHOTTERS = "io.containerd.snapshotter"
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_CONTAINERD_FOLDER = "/var/lib/containerd"
"""Both are containerd's defaults (containerd-config.toml(5): `address`, `root`)."""
ASK_SECONDS = 30.0
"""A registry that does not answer within this time has not agreed."""
_PROVE_SECONDS = 60.0
_PROOFS = 8
"""At once: each has a thread, which a hostile registry can keep."""


class Pull:
    """One pull, in its own thread and with its own connection.

    The engine answers nothing before the registry does; silent registries must not block the
    watching and stopping of containers. docker-py cannot end a pull from another thread; its event
    stream can (`CancellableStream`), and that class is used here on the pull's response.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        reference: str,
        auth: RegistryAuth | None,
        last: str = DOCKER.last_of_pull,
    ) -> None:
        self._last = last
        self._connect = connect
        self._reference = reference
        self._auth = auth
        self._cancelled = False
        self._complete = False
        self._stream: Any = None
        self._layers: dict[str, tuple[int, int]] = {}
        self._extracted: dict[str, int] = {}

    async def run(self, progress: Callable[[PullProgress], None]) -> None:
        """Return when the image is there. Raises EngineError, and docker-py's and requests' errors.

        If it is cancelled before the engine answers, its thread stays until the answer comes.
        """
        loop = asyncio.get_running_loop()

        def report(now: PullProgress) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
                loop.call_soon_threadsafe(progress, now)

        work = in_own_thread(lambda: self._pull(report), "shim-pull")
        try:
            # A thread cannot be cancelled: it ends when its stream does.
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._cancel()
            if self._stream is not None:
                await asyncio.wait({work})
            raise

    def _pull(self, report: Callable[[PullProgress], None]) -> None:
        api = self._connect()
        try:
            self._post(api, report)
        finally:
            api.close()

    def _post(self, api: Any, report: Callable[[PullProgress], None]) -> None:
        repository, tag = parse_repository_tag(self._reference)
        response = api.post(
            _address(api, "/images/create"),
            # Without a tag the engine pulls all tags of the repository (Docker's POST
            # /images/create).
            params={"fromImage": repository, "tag": tag or "latest"},
            headers=_login(self._auth),
            stream=True,
            # A registry may be silent for minutes; `Images` ends a pull without progress.
            timeout=None,
        )
        with contextlib.closing(response):
            self._follow(api, response, report)

    def _follow(self, api: Any, response: Any, report: Callable[[PullProgress], None]) -> None:
        _require_ok(response)
        # None: a piece as soon as it comes (requests: `iter_content`).
        messages = json_stream(response.iter_content(None))
        self._stream = CancellableStream(messages, response)
        # A cancel before the engine's answer found no stream that it could close.
        if self._cancelled:
            self._cancel()
        for message in self._stream:
            # The engine answered 200 before it asked the registry, so errors come in the stream.
            if "error" in message:
                raise EngineError(str(message["error"]))
            self._note(message)
            report(self._progress())
        # An engine that is stopped ends the stream without an error message.
        if not (self._complete or self._cancelled):
            raise EngineUnavailable("the engine aborted the pull")

    def _cancel(self) -> None:
        """Cancel the pull, from any thread at any time."""
        self._cancelled = True
        if self._stream is not None:
            # docker-py reaches for the socket below the response, which the pull's own thread may
            # close.
            with contextlib.suppress(Exception):
                self._stream.close()

    def _note(self, message: dict[str, Any]) -> None:
        layer, status = message.get("id"), str(message.get("status", ""))
        self._complete = status.startswith(self._last)
        if not layer:
            return
        detail = message.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif status in ("Download complete", "Pull complete") and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        if status == "Extracting":
            self._extracted[layer] = int(detail.get("current", 0))
        elif status == "Pull complete" and layer in self._layers:
            self._extracted[layer] = self._layers[layer][1]

    def _progress(self) -> PullProgress:
        return PullProgress(
            downloaded=sum(done for done, _ in self._layers.values()),
            total=sum(total for _, total in self._layers.values()),
            extracted=sum(self._extracted.values()),
        )


def ask(connect: Callable[[], Any], reference: str, auth: RegistryAuth | None) -> None:
    """Make the engine request the image's manifest with these credentials or none; nothing is
    pulled.

    Raises ImageError, and docker-py's and requests' errors. Blocking.
    """
    api = connect()
    try:
        response = api.get(
            _address(api, f"/distribution/{quote(reference, safe='/:')}/json"),
            headers=_login(auth),
            timeout=ASK_SECONDS,
        )
        _require_ok(response)
    except requests.exceptions.ReadTimeout:
        raise ImageError(
            f"the registry of {reference} did not say within {ASK_SECONDS} s whether this run may "
            "have the image",
            ImageProblem.STALLED,
        ) from None
    finally:
        api.close()


def _address(api: Any, path: str) -> str:
    """Return the address of a request that docker-py has no method for: its client is a session of
    requests."""
    return f"{api.base_url}/v{api.api_version}{path}"


def _require_ok(response: requests.Response) -> None:
    """Raise docker-py's error for a refusal."""
    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        raise create_api_error_from_http_exception(error) from error


def _login(auth: RegistryAuth | None) -> dict[str, str]:
    """Return the login. Without it, docker-py would use what it finds in the home folder of the
    shim's user."""
    if auth is None:
        return {}
    login = {"username": auth.username, "password": auth.password}
    return {"X-Registry-Auth": encode_header(login).decode()}


def explain(reference: str, auth: RegistryAuth | None, detail: str) -> ImageError:
    """Return the engine's error, classified by what the user can do."""
    if auth is not None:
        # The engine quotes the registry, which may echo what it was sent; users read this message.
        detail = detail.replace(auth.password, "***") if auth.password else detail
    # A hostile registry chooses its length and its line breaks.
    detail = " ".join(detail[:_MAX_READ].split())
    problem = _problem(detail.lower())
    if len(detail) > _MAX_DETAIL:
        # containerd says the cause at the end, behind the names of layers and folders.
        detail = f"{detail[: _MAX_DETAIL // 2]} … {detail[-_MAX_DETAIL // 2 :]}"
    advice = _ADVICE[problem].format(image=reference)
    if problem is ImageProblem.REFUSED and auth is None:
        advice = f"{reference} does not exist, or its registry wants credentials: set registry_auth"
    return ImageError(f"{advice} ({detail})", problem)


_WORDS: tuple[tuple[ImageProblem, tuple[str, ...]], ...] = (
    (ImageProblem.NO_SPACE, ("no space left", "disk quota exceeded")),
    (
        ImageProblem.BAD_NAME,
        ("invalid reference format", "invalid repository name", "repository name must be"),
    ),
    (
        ImageProblem.REFUSED,
        ("unauthorized", "access denied", "denied", "no basic auth", "authentication required"),
    ),
    (ImageProblem.MISSING, ("manifest unknown", "manifest for", "not found: manifest")),
    (
        ImageProblem.TLS,
        ("server gave http response", "x509", "certificate", "tls:"),
    ),
    (
        ImageProblem.UNREACHABLE,
        (
            *("no such host", "connection refused", "dial tcp", "i/o timeout", "timeout"),
            *("no route", "connection reset", "unexpected eof", "server misbehaving"),
        ),
    ),
    # Last, because messages of the kinds above may contain these words, too.
    (ImageProblem.MISSING, ("not found", "does not exist")),
)
_ADVICE = {
    ImageProblem.NO_SPACE: "the node's disk is too full for {image}",
    ImageProblem.BAD_NAME: "{image!r} is not a valid image name",
    ImageProblem.REFUSED: "the registry refused the user name or password of registry_auth for "
    "{image}",
    ImageProblem.MISSING: "there is no image {image}",
    ImageProblem.TLS: "the registry of {image} does not speak the TLS that the Docker engine "
    "expects",
    ImageProblem.UNREACHABLE: "the registry of {image} cannot be reached from this node",
    ImageProblem.OTHER: "image {image} could not be pulled",
}


def _problem(detail: str) -> ImageProblem:
    for problem, words in _WORDS:
        if any(word in detail for word in words):
            return problem
    return ImageProblem.OTHER


class DockerImages:
    """The images. `in_our_words` is the part of `call` that translates errors."""

    def __init__(
        self,
        call: Call,
        in_our_words: Callable[[], AbstractContextManager[None]],
        dialect: Dialect = DOCKER,
        prove_seconds: float = _PROVE_SECONDS,
    ) -> None:
        self._dialect = dialect
        self._prove_seconds = prove_seconds
        self._proofs = asyncio.Semaphore(_PROOFS)
        self._call = call
        self._in_our_words = in_our_words
        self._api: Any = None
        self._folder = ""
        self._connect: Callable[[], Any] = lambda: None

    def open(self, api: Any, folder: str, connect: Callable[[], Any]) -> None:
        """Begin. `folder` is where the engine keeps its images; `connect` makes a docker-py client
        for one pull."""
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
            raise explain(reference, None, str(error)) from None
        return _image_info(reference, found)

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        pull = Pull(self._connect, reference, auth, self._dialect.last_of_pull)
        try:
            with self._in_our_words():
                await pull.run(progress)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise explain(reference, auth, str(error)) from None
        image = await self.local(reference)
        if image is None:
            raise explain(reference, auth, "it was removed right after the pull")
        return image

    async def ask(self, reference: str, digest: str | None, auth: RegistryAuth | None) -> None:
        """Ask the registry in its own thread, like a pull: it may never answer."""
        act = partial(ask, self._connect, pinned(reference, digest), auth)
        if not self._dialect.asks_registries:
            await self._pull_again(reference, digest, auth)
            return
        try:
            with self._in_our_words():
                await in_own_thread(act, "shim-ask")
        except (EngineUnavailable, ImageError):
            raise
        except EngineError as error:
            raise explain(reference, auth, str(error)) from None

    async def _pull_again(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        *others, last = await self._digests(reference, digest)
        for other in others:
            try:
                await self.pull(pinned(reference, other), auth, lambda progress: None)
                return
            except ImageError as error:
                if error.problem is not ImageProblem.MISSING:
                    raise
        await self.pull(pinned(reference, last), auth, lambda progress: None)

    async def _digests(self, reference: str, digest: str | None) -> list[str | None]:
        """Return the digests by which the registry may know an image of which it has this one.

        All are manifests of the same image, so each shows the same.
        """
        if digest is None or not self._dialect.mixes_digests:
            return [digest]
        found = await self._call(lambda: self._api.inspect_image(pinned(reference, digest)))
        names = [name.partition("@") for name in found.get("RepoDigests") or ()]
        here = {one for name, _, one in names if repository_of(name) == repository_of(reference)}
        return [digest, *sorted(here - {digest})]

    async def prove(self, reference: str, image: ImageInfo, auth: RegistryAuth | None) -> None:
        info = await self._call(lambda: self._api.info())
        settings = info.get("RegistryConfig") or {}
        digests = [one or "" for one in await self._digests(reference, image.digest)]
        named = (repository_of(reference), digests, image.id)
        try:
            async with asyncio.timeout(self._prove_seconds):
                await self._proofs.acquire()
                proof = in_own_thread(
                    partial(registry.prove_any, *named, auth, settings), "shim-prove"
                )
                # A registry that sends a byte now and then keeps its thread, and this place.
                proof.add_done_callback(lambda _: self._proofs.release())
                await asyncio.shield(proof)
        except TimeoutError:
            raise ImageError(
                f"the registry of {reference} did not show within {self._prove_seconds:g} s that "
                "it has the image",
                ImageProblem.STALLED,
            ) from None

    async def remove(self, reference: str) -> bool:
        """Remove the image. The engine itself refuses if a container uses it, also an ended one."""
        try:
            found = await self._call(lambda: self._api.inspect_image(reference))
            image_id = str(found["Id"])
            # The engine refuses for the last name alone: of several names it takes one away, also
            # while a container uses the image.
            used = {"ancestor": image_id}
            if await self._call(lambda: self._api.containers(all=True, filters=used)):
                return False
            await self._call(lambda: self._api.remove_image(reference))
        except NotFound:
            # Removed meanwhile, by the operator or by another tool on the node.
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


def folder_of(info: Mapping[str, Any]) -> str:
    """Return the folder on whose disk the engine keeps its images. `info` is the engine's answer
    about itself.

    Docker 29 keeps them in containerd by default, earlier versions with `containerd-snapshotter`.
    It tells containerd's socket and not its folder. One that dockerd starts by itself has its
    folder below dockerd's.
    """
    kinds = [value for name, value in info.get("DriverStatus") or () if name == "driver-type"]
    is_in_containerd = any(str(kind).startswith(_SNAPSHOTTERS) for kind in kinds)
    address = (info.get("Containerd") or {}).get("Address")
    if is_in_containerd and address == _CONTAINERD_SOCKET:
        return _CONTAINERD_FOLDER
    return str(info.get("DockerRootDir", ""))


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
    """Return the names by repository; the first name of a repository counts.

    Another repository may have compressed the same image into another manifest.
    """
    return {repository_of(name): name for name in reversed(names or ())}


Mounts = Sequence[MountSpec]
_USER_FILES = ("/etc/passwd", "/etc/group")
_PATH_STAT = "X-Docker-Container-Path-Stat"
_IS_LINK, _IS_SPECIAL = 1 << 27, 0x0F280000
"""ModeSymlink and ModeType of Go's package io/fs, without folders: to read one fails at once."""
_MAX_LINKS = 40
"""The kernel follows no more of them (path_resolution(7))."""
_MAX_LINK_ARCHIVE = 1 << 16


class _PathStat(msgspec.Struct, rename="camel"):
    mode: int
    link_target: str = ""
    """Where a link leads in the end."""

    @property
    def is_special(self) -> bool:
        return bool(self.mode & _IS_SPECIAL & ~_IS_LINK)


class UserFiles:
    """The lists of users and groups, which an engine opens in a container's root folder as root of
    the node.

    dockerd and the OCI runtime read both before the job's first process runs, wherever links lead.
    For a FIFO they wait for ever, with the container's lock held: no call about it ends, and nobody
    can remove it. A device does what it does when it is opened; a watchdog restarts the machine. So
    they are looked at before the first start of each image, and where a mount may bring others, on
    the way of a link, too. To make a container opens none of them.

    Names of containers that are made for a look begin with `name`.
    """

    def __init__(self, call: Call, name: str, api: Any = None) -> None:
        self._call = call
        self._name = name
        self._api = api
        self._known: dict[str, frozenset[str]] = {}
        """The paths on the way to the image's files, by its id."""
        self._looking: dict[str, asyncio.Task[None]] = {}
        """By the image's id: tasks that come together often have one image."""
        self._expected: dict[str, None] = {}
        self._lock = threading.Lock()
        """For the next two."""
        self._used = set[str]()
        """The names of containers that are being looked at."""
        self._may_be_left = True
        """A crash, or an engine that did not answer, may have left containers."""

    def open(self, api: Any) -> None:
        """Begin. `api` is a client of docker-py."""
        self._api = api

    async def close(self) -> None:
        self._expected.clear()
        for looking in (looks := tuple(self._looking.values())):
            looking.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    def expect(self, image: str) -> None:
        """Look soon at an image, by its id, of which a container may start, for `check`."""
        # One after the other: a shim that starts expects all that its node has pulled ahead.
        if image not in self._known and image not in self._looking:
            self._expected[image] = None
            self._look_at_next()

    def _look_at_next(self) -> None:
        if self._expected and not self._looking:
            self._look(next(iter(self._expected)))

    async def check(self, spec: ContainerSpec) -> None:
        """Raise EngineError if the engine must not open one of them."""
        if spec.image not in self._known:
            # It is for all tasks with this image, of which one may be cancelled.
            await asyncio.shield(self._look(spec.image))
        way, mounts = self._known[spec.image], list[MountSpec]()
        # A volume may have links into another one.
        while more := [one for one in _covering(spec.mounts, way) if one not in mounts]:
            # To look past a file's mount, dockerd 28 opens what is in its place.
            await self._ways(spec.image, mounts, [one.target for one in more])
            mounts += more
            way |= await self._ways(spec.image, mounts, _USER_FILES)

    def _look(self, image: str) -> asyncio.Task[None]:
        self._expected.pop(image, None)
        if (looking := self._looking.get(image)) is None:
            looking = asyncio.create_task(self._look_at(image), name=f"users of {image}")
            self._looking[image] = looking
            looking.add_done_callback(lambda ended: self._looked(image, ended))
        return looking

    def _looked(self, image: str, ended: asyncio.Task[None]) -> None:
        # The next task tries again: an engine that was away says nothing about the image.
        del self._looking[image]
        _ = ended.cancelled() or ended.exception()  # asyncio logs an error that nobody took
        self._look_at_next()

    async def _look_at(self, image: str) -> None:
        # dockerd reads what is below the mounts, the OCI runtime what is in them.
        self._known[image] = await self._ways(image, (), _USER_FILES)

    async def _ways(self, image: str, mounts: Mounts, files: Iterable[str]) -> frozenset[str]:
        return await self._call(partial(self._check, image, tuple(mounts), files))

    def _check(self, image: str, mounts: Mounts, files: Iterable[str]) -> frozenset[str]:
        """Return the paths on the way to these files. Raises EngineError if one must not be
        opened."""
        api, asked = self._api, [request.mount(one) for one in mounts]
        host = api.create_host_config(network_mode="none", mounts=asked)
        with self._container_name() as name:
            made = api.create_container(
                image, ["-"], name=name, network_disabled=True, host_config=host
            )
            try:
                # Both files have the same folder.
                stat = cache(partial(_stat, api, made["Id"], bool(mounts)))
                target_of = partial(_target, api, made["Id"])
                return frozenset[str]().union(*(_way(stat, target_of, one) for one in files))
            finally:
                try:
                    api.remove_container(made["Id"], v=True, force=True)
                # It tells nothing of the image, and the next look tries again.
                except docker.errors.APIError:
                    self._may_be_left = True

    @contextlib.contextmanager
    def _container_name(self) -> Iterator[str]:
        """Yield a name of its own: a container that the engine makes for minutes, as it copies what
        an image has below a VOLUME, is in no other one's way."""
        name = f"{self._name}-{secrets.token_hex(4)}"
        with self._lock:
            if self._may_be_left:
                self._remove_left()
                self._may_be_left = False
            self._used.add(name)
        try:
            yield name
        except BaseException:
            with self._lock:
                self._may_be_left = True
            raise
        finally:
            with self._lock:
                self._used.discard(name)

    def _remove_left(self) -> None:
        names = f"^/?{re.escape(self._name)}(-[0-9a-f]{{8}})?$"
        for one in self._api.containers(all=True, filters={"name": names}):
            if self._used.isdisjoint(name.removeprefix("/") for name in one["Names"]):
                # It may be ending, or gone.
                with contextlib.suppress(docker.errors.APIError):
                    self._api.remove_container(one["Id"], v=True, force=True)


def _covering(mounts: Iterable[MountSpec], paths: Iterable[str]) -> list[MountSpec]:
    among = [PurePosixPath(path) for path in paths]
    return [one for one in mounts if any(path.is_relative_to(one.target) for path in among)]


def _way(
    stat: Callable[[str], _PathStat | None], target_of: Callable[[str], str], file: str
) -> set[str]:
    """Return the paths on the way to the file, over links. A mount on one of them, or above it, is
    a way to another file. Raises EngineError if the engine must not open the file."""
    at, left, links = PurePosixPath("/"), deque(PurePosixPath(file).parts[1:]), 0
    way, found = set[str](), None
    while left and links <= _MAX_LINKS:
        name = left.popleft()
        here = at.parent if name == ".." else at / name
        way.add(str(here.joinpath(*left)))
        found = stat(str(here))
        if found is None:
            break
        if found.mode & _IS_LINK:
            links += 1
            end = stat(found.link_target)
            # dockerd 20.10 opens it to tell of the link.
            if end is not None and end.is_special:
                found = end
                break
            target = PurePosixPath(target_of(str(here)))
            at = PurePosixPath("/") if target.is_absolute() else at
            left.extendleft(reversed(target.parts[target.is_absolute() :]))
        else:
            at = here
    if found is not None and found.is_special:
        raise EngineError(
            f"{file} of the image or of a volume is no file, so the engine must not open it"
        )
    return way


def _stat(api: Any, container_id: str, has_mounts: bool, path: str) -> _PathStat | None:
    """Return what the engine tells of the path, without opening it. None: it is not there, or the
    engine does not get there, as it will not when it starts the container. Raises EngineError if it
    does not get past the mounts, as dockerd 28 does not where one lies on an absolute link; the OCI
    runtime does.
    """
    address = _address(api, f"/containers/{container_id}/archive")
    answer: requests.Response = api.head(address, params={"path": path}, timeout=api.timeout)
    if answer.status_code == requests.codes.ok:
        return decoder_of(_PathStat).decode(base64.b64decode(answer.headers[_PATH_STAT]))
    if has_mounts and answer.status_code != requests.codes.not_found:
        raise EngineError(
            f"the engine cannot look at {path} with the job's volumes: mount none in the place of "
            f"a link, or on the way to /etc/passwd and /etc/group"
        )
    return None


def _target(api: Any, container_id: str, link: str) -> str:
    """Return where the link leads, as it is written: `HEAD` tells where in the end, and not which
    way. Raises EngineError if it is no link any more."""
    address = _address(api, f"/containers/{container_id}/archive")
    with api.get(address, params={"path": link}, timeout=api.timeout, stream=True) as answer:
        is_there = answer.status_code == requests.codes.ok
        # In a volume, it may have become a file without an end.
        read = answer.raw.read(_MAX_LINK_ARCHIVE) if is_there else b""
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(read)) as archive:
        if (first := archive.next()) is not None and first.issym():
            return first.linkname
    raise EngineError(f"the engine does not tell where {link} leads")
