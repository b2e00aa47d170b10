"""Recalls: a cloud announces in its metadata service that it takes this machine back.

EC2 does so two minutes before it takes a spot instance, GCP 30 s before it takes a spot VM and a
minute before it ends one for maintenance. The clouds want the service to be asked every 5 s. It is
asked only on a machine whose firmware says that it is of such a cloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fairlead.wire.node import Recall

log = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
ADDRESS = "169.254.169.254"
"""Of the metadata service, at EC2 and at GCP."""
_TIMEOUT = 2.0
_MAX_ANSWER = 4096
# The longest that EC2 allows.
_TOKEN_SECONDS = 21600
_PREEMPTION_SECONDS = 30.0
_MAINTENANCE_SECONDS = 60.0
_DMI = Path("/sys/class/dmi/id")


class Metadata(Protocol):
    """What a cloud's metadata service tells about this machine. It blocks."""

    def recall(self) -> Recall | None:
        """Return the announcement; None: there is none. Raises OSError when the service does not
        answer, ValueError when its answer makes no sense."""


class Ec2:
    def __init__(self, host: str = ADDRESS, port: int = 80) -> None:
        self._address = host, port
        self._token: str | None = None

    def recall(self) -> Recall | None:
        status, text = self._get()
        if status == http.client.UNAUTHORIZED:
            self._token = None
            status, text = self._get()
        # The path is there only while EC2 takes the instance back.
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise ValueError(f"the metadata service answers {status}")
        action = json.loads(text)
        at = datetime.fromisoformat(action["time"]).timestamp()
        return Recall(at=at, why=f"EC2 takes the spot instance back ({action['action']})")

    def _get(self) -> tuple[int, str]:
        """Ask with a session's token: a service that requires it (IMDSv2) answers nobody else."""
        if self._token is None:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
            status, text = _ask(self._address, "PUT", "/latest/api/token", wish)
            if status != http.client.OK:
                raise ValueError(f"the metadata service gives no token: {status}")
            self._token = text
        headers = {"X-aws-ec2-metadata-token": self._token}
        return _ask(self._address, "GET", "/latest/meta-data/spot/instance-action", headers)


class Gcp:
    def __init__(
        self, host: str = ADDRESS, port: int = 80, now: Callable[[], float] = time.time
    ) -> None:
        self._address = host, port
        self._now = now

    def recall(self) -> Recall | None:
        if self._value("preempted") == "TRUE":
            at = self._now() + _PREEMPTION_SECONDS
            return Recall(at=at, why="GCP takes the spot VM back")
        if self._value("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            at = self._now() + _MAINTENANCE_SECONDS
            return Recall(at=at, why="GCP ends the VM for maintenance of its host")
        return None

    def _value(self, name: str) -> str:
        path = f"/computeMetadata/v1/instance/{name}"
        # Google answers only with this header, which no redirected or forged request brings along.
        status, text = _ask(self._address, "GET", path, {"Metadata-Flavor": "Google"})
        if status != http.client.OK:
            raise ValueError(f"the metadata service answers {status} for {name}")
        return text


def _ask(
    address: tuple[str, int], method: str, path: str, headers: Mapping[str, str]
) -> tuple[int, str]:
    # http.client takes no proxy from the environment: this address is the machine's own.
    connection = http.client.HTTPConnection(*address, timeout=_TIMEOUT)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER).decode(errors="replace").strip()
    # Elsewhere a proxy, or another machine, may answer at this link-local address (RFC 3927).
    except http.client.HTTPException as error:
        raise ValueError(f"the metadata service does not speak HTTP: {error!r}") from None
    finally:
        connection.close()


def metadata_here(dmi: Path = _DMI) -> Metadata | None:
    """Return the metadata service of the cloud whose machine this is; None: it is of none."""
    try:
        vendor = (dmi / "sys_vendor").read_text().strip()
    # Containers, and machines without a firmware, have no DMI.
    except OSError:
        return None
    if vendor == "Amazon EC2":
        return Ec2()
    return Gcp() if vendor == "Google" else None


class RecallWatch:
    """Asks the metadata service until it announces a recall. `tell` is called then, once."""

    def __init__(self, metadata: Metadata, tell: Callable[[], None]) -> None:
        self.found: Recall | None = None
        self._metadata = metadata
        self._tell = tell
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="recall")

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def look(self) -> None:
        """Ask once."""
        try:
            self.found = await asyncio.to_thread(self._metadata.recall)
        # One failure says nothing: a cloud announces an end at least 30 s ahead, and the next look
        # is 5 s away.
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("the cloud's metadata service: %s", error)
            return
        if self.found is not None:
            log.warning("%s", self.found.why)
            self._tell()

    async def _run(self) -> None:
        # One that was announced stays: no cloud keeps a machine after all.
        while self.found is None:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)
