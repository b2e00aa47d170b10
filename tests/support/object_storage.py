"""An object storage that speaks S3, on this machine: the server of moto, as a process."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
import pytest

from common.object_storage import open_bucket
from controller.outputs.bucket import Bucket
from tests.support.daemons import Daemon
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG

KEYS = {
    "AWS_ACCESS_KEY_ID": "fairlead-tests",
    "AWS_SECRET_ACCESS_KEY": "canary-of-the-bucket",
    "AWS_REGION": "us-east-1",
}
"""The environment of a program that may use it."""
_NAME = "outputs"


class ObjectStorage:
    """It has one bucket. `away` ends it; `back` starts it again with its bucket empty."""

    def __init__(self, folder: Path, host: str) -> None:
        port = free_port()
        self.endpoint = f"http://{host}:{port}"
        argv = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
        self._daemon = Daemon(argv, folder / "object-storage.log", outlasts_tests=True)
        self.back()

    @property
    def bucket(self) -> Bucket:
        return Bucket.parse(f"s3://{_NAME}/kept/here", self.endpoint)

    def objects(self) -> list[str]:
        """Return the keys of all objects."""
        with urllib.request.urlopen(f"{self.endpoint}/{_NAME}?list-type=2") as answer:
            return re.findall(r"<Key>([^<]*)</Key>", answer.read().decode())

    def put(self, key: str, content: bytes) -> None:
        obstore.put(open_bucket(_NAME, self.endpoint), key, content)

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(open_bucket(_NAME, self.endpoint), key).bytes())

    def empty(self) -> None:
        """Forget all objects; start it if it was left away."""
        reset = urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")
        try:
            with urllib.request.urlopen(reset, timeout=LONG):
                pass
        except OSError:
            self._daemon.kill9()
            self._daemon.spawn()
        self._daemon.wait_ready(self._has_bucket)

    def away(self) -> None:
        self._daemon.kill9()

    def back(self) -> None:
        self._daemon.spawn()
        self._daemon.wait_ready(self._has_bucket)

    def _has_bucket(self) -> bool:
        make = urllib.request.Request(f"{self.endpoint}/{_NAME}", method="PUT")
        with suppress(OSError), urllib.request.urlopen(make, timeout=LONG) as answer:
            return bool(answer.status == 200)
        return False


@contextmanager
def keys_in_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def object_storage(folder: Path, host: str = "127.0.0.1") -> Iterator[ObjectStorage]:
    """Start one at this address; the environment of this process gets its keys."""
    with keys_in_environment():
        storage = ObjectStorage(folder, host)
        yield storage
        storage.away()
