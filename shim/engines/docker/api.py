"""Parts that the Docker modules share: errors, the install's identity, volumes, own threads.

When the shim's own record of its install is lost, the labels and mounts of its containers name it.
A task's volume `data` is the engine's `fairlead-data`, so a user reaches no volume of other
software; volumes are never removed here. An act that may take forever gets its own thread, which
blocks no pool and does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import docker
import docker.errors
import requests.exceptions

from shim.engines.base import EngineUnavailable, NodeFault
from shim.engines.docker.dialect import Dialect
from shim.errors import EngineError, VolumeError

T = TypeVar("T")


class Call(Protocol):
    """Runs an act of docker-py in a thread, with its errors translated."""

    def __call__(self, act: Callable[[], T], /) -> Awaitable[T]: ...


class Client(docker.APIClient):
    """A client of docker-py, for an engine to which no proxy and no ~/.netrc leads.

    requests looks for both at each call, and reads the whole environment twice: 0.7 ms a call in
    place of 0.4. It gave an engine what ~/.netrc has for localhost. docker-py asks the engine in
    its constructor, before anybody could set this attribute.
    """

    @property
    def trust_env(self) -> bool:
        return False

    @trust_env.setter
    def trust_env(self, value: bool) -> None:
        """Do nothing: the constructor of requests' Session sets it."""


class DockerRefused(EngineError):
    """The engine refused. `status` is the HTTP status of its answer."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class NotFound(DockerRefused):
    def __init__(self, message: str) -> None:
        super().__init__(message, 404)


class Conflict(DockerRefused):
    def __init__(self, message: str) -> None:
        super().__init__(message, 409)


_INSTALL = "fairlead.install"
_CALL_SECONDS = 60


def find_install(dialect: Dialect, data: Path) -> str | None:
    """Return the install of the data folder, from its containers. Blocking. Raises
    EngineUnavailable."""
    try:
        api = Client(base_url=dialect.url, version="auto", timeout=_CALL_SECONDS)
        try:
            found = api.containers(all=True, filters={"label": _INSTALL})
        finally:
            api.close()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise dialect.unreachable(error) from None
    installs = {one["Labels"][_INSTALL] for one in found if _is_mounted_from(one, data)}
    return min(installs, default=None)


def _is_mounted_from(container: dict[str, Any], data: Path) -> bool:
    return any(
        str(mount.get("Source", "")).startswith(f"{data}/tasks/")
        for mount in container.get("Mounts") or ()
    )


_PREFIX = "fairlead-"


async def ensure_volume(call: Call, api: Any, name: str) -> str:
    """Make the volume if it is missing. Raises VolumeError."""
    full = _PREFIX + name
    try:
        try:
            await call(lambda: api.inspect_volume(full))
        except NotFound:
            await call(lambda: api.create_volume(full))
    # Before its base EngineError: an engine that restarts is no fault of the volume.
    except EngineUnavailable:
        raise
    except DockerRefused as error:
        if error.status >= 500:
            raise NodeFault(f"volume {name}: {error}") from None
        raise VolumeError(f"volume {name}: {error}") from None
    except EngineError as error:
        raise VolumeError(f"volume {name}: {error}") from None
    return full


def in_own_thread(act: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run the act in its own thread at once. The future may be left without a waiter."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_seen)

    def work() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, act())
        except BaseException as error:
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            loop.call_soon_threadsafe(_unless_cancelled, future, settle)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _unless_cancelled(future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    # The thread works on after its caller was cancelled, and a cancelled future takes no result.
    if not future.cancelled():
        settle()


def _seen(future: asyncio.Future[T]) -> None:
    # The first look at an exception keeps asyncio from reporting it as never retrieved.
    if not future.cancelled():
        future.exception()
