"""Code on its way to a controller that ends: it is sent again, until one has all of it."""

from __future__ import annotations

import hashlib
import json
import random
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairlead import patience
from fairlead.errors import ApiError, ConnectionLost
from fairlead.files.upload import SEND_TRIES, send_code
from fairlead.rest import ControllerClient
from fairlead.submission import SENT_AGAIN, submit, with_code, with_code_there
from fairlead.wire.errors import UPLOAD_NOT_STORED
from tests.support.server_threads import served
from tests.support.ssh_daemon import free_port

SIZE = 1 << 20
"""More than a kernel takes for a reader that does not read at once."""


class End(Enum):
    """How the next upload ends; without one, it is stored."""

    CUT = auto()
    ANSWER_LOST = auto()
    REFUSED = auto()
    AWAY = auto()
    """Refused because what the controller needs is away."""
    DISK_FULL = auto()
    GONE = auto()
    """It is cut, and nobody listens any more."""
    FORGOTTEN = auto()
    """It is cut, and the next leader has nothing of what was stored before."""


REFUSALS = {
    End.REFUSED: (413, "too_large"),
    End.AWAY: (503, "unavailable"),
    End.DISK_FULL: (503, UPLOAD_NOT_STORED),
}


class Store:
    """A controller that takes uploads."""

    def __init__(self) -> None:
        self.ends: deque[End | int | None] = deque()
        """A number: the status of a proxy's answer."""
        self.looks: deque[int] = deque()
        """What the next questions get instead of whether the upload is there."""
        self.stored: set[str] = set()
        self.keys: list[str] = []
        """Of the submissions that came."""
        self.begun = 0
        self._port = free_port()
        self._running = ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = 200 if self.path.rpartition("/")[2] in store.stored else 404
                self._answer(store.looks.popleft() if store.looks else found)

            def do_POST(self) -> None:
                """It knows no parts."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/runs":
                    self._submit(json.loads(body))
                else:
                    self._answer(404)

            def _submit(self, body: dict[str, Any]) -> None:
                store.keys.append(body["client_key"])
                needs = {file["uploaded"][0] for file in body["configuration"]["files"]}
                is_there = needs <= store.stored
                self._answer(201 if is_there else 409, "some" if is_there else "not_uploaded")

            def do_PUT(self) -> None:
                end = store.ends.popleft() if store.ends else None
                store.begun += 1
                if end in (End.CUT, End.GONE, End.FORGOTTEN):
                    if end is End.FORGOTTEN:
                        store.stored.clear()
                    if end is End.GONE:
                        server.shutdown()
                        server.socket.close()
                    self._cut()
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if isinstance(end, int):
                    self._answer(end, None)
                    return
                if end in REFUSALS:
                    self._answer(*REFUSALS[end])
                    return
                store.stored.add(hashlib.sha256(body).hexdigest())
                if end is End.ANSWER_LOST:
                    self._cut()
                else:
                    self._answer(200)

            def _answer(self, status: int, code: str | None = "some") -> None:
                """`code` None: as a proxy answers."""
                body = json.dumps({"error": {"code": code, "message": "a reason"}}).encode()
                body = body if code else b"<html>"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _cut(self) -> None:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._running.enter_context(served(server))

    def stop(self) -> None:
        self._running.close()


class Client(ControllerClient):
    """`unheard`: how often a question got no answer. At the third time the store comes back."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.url, "token")
        self._store = store
        self.unheard = 0

    def has_upload(self, digest: str) -> bool:
        try:
            return super().has_upload(digest)
        except ConnectionLost:
            self.unheard += 1
            if self.unheard == 3:
                self._store.stop()
                self._store.start()
            raise


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(patience, "FIRST_WAIT_SECONDS", 0.0)
    made = Store()
    made.start()
    yield made
    made.stop()


class Sent:
    """What `fairlead apply` does with the files `a` and `b`."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.client = Client(store)
        self.told: list[str] = []
        send_code(self.client, written(folder), folder, {}, self.told.append)


def written(folder: Path) -> dict[str, object]:
    for name in "ab":
        (folder / name).write_bytes(random.Random(name).randbytes(SIZE))
    return {"type": "task", "commands": ["true"], "files": ["a", "b"]}


@pytest.mark.parametrize("end", [End.CUT, End.ANSWER_LOST, End.GONE])
def test_what_was_cut_is_sent_again_unless_it_is_there(
    store: Store, tmp_path: Path, end: End
) -> None:
    store.ends.append(end)
    sent = Sent(store, tmp_path)
    assert len(store.stored) == 2
    assert store.begun == (2 if end is End.ANSWER_LOST else 3)
    assert sent.client.unheard == (3 if end is End.GONE else 0)
    cut, back = sent.told
    assert cut.endswith("; trying again")
    assert back == "the controller is back"


def test_what_the_next_leader_lacks_is_sent_again(store: Store, tmp_path: Path) -> None:
    store.ends.extend([None, End.FORGOTTEN])
    Sent(store, tmp_path)
    assert len(store.stored) == 2
    assert store.begun == 4


def test_what_went_to_the_leader_before_goes_to_the_next_address(
    store: Store, tmp_path: Path
) -> None:
    """Neither has a bucket, and the client goes on to the next one within one request."""
    follower = Store()
    follower.start()
    store.ends.extend([None, End.GONE])
    client, told = ControllerClient(f"{store.url},{follower.url}", "token", tell=print), list[str]()
    files = written(tmp_path)
    _, status = with_code_there(
        lambda: with_code(client, files, tmp_path, "a task", {}, told.append),
        lambda made: submitted(client, made, told),
        told.append,
    )
    follower.stop()
    assert (status, told, follower.begun) == (201, [SENT_AGAIN], 2)
    assert follower.keys == ["one key"] * 2


def submitted(client: ControllerClient, made: object, told: list[str]) -> tuple[bytes, int]:
    body = {"configuration": made, "client_key": "one key"}
    data, kept = submit(client, body, told.append)
    return data, 200 if kept else 201


def test_what_cuts_each_one_is_told(store: Store, tmp_path: Path) -> None:
    store.ends.extend([End.CUT] * (SEND_TRIES + 1))
    with pytest.raises(ConnectionLost, match="the connection was cut"):
        Sent(store, tmp_path)
    assert store.begun == SEND_TRIES


@pytest.mark.parametrize("end", [End.REFUSED, End.DISK_FULL])
def test_a_refusal_is_the_end(store: Store, tmp_path: Path, end: End) -> None:
    store.ends.append(end)
    with pytest.raises(ApiError, match="a reason"):
        Sent(store, tmp_path)
    assert store.begun == 1


@pytest.mark.parametrize("status", [302, 401, 413])
def test_a_proxys_refusal_is_told_at_once(store: Store, tmp_path: Path, status: int) -> None:
    store.ends.append(status)
    with pytest.raises(ConnectionLost, match=f"answered with HTTP {status}, but not like"):
        Sent(store, tmp_path)
    assert store.begun == 1


@pytest.mark.parametrize("end", [End.AWAY, 408, 502, 503, 504])
def test_what_may_be_back_in_a_moment_is_waited_for(
    store: Store, tmp_path: Path, end: End | int
) -> None:
    store.ends.append(end)
    store.looks.extend([404, 503])
    sent = Sent(store, tmp_path)
    assert (len(store.stored), store.begun) == (2, 3)
    assert sent.told[-1] == "the controller is back"


def test_a_controller_that_cannot_tell_is_not_waited_for(store: Store, tmp_path: Path) -> None:
    store.looks.extend([404, 500])
    with pytest.raises(ApiError, match="a reason"):
        Sent(store, tmp_path)
    assert store.begun == 1


def test_a_controller_that_has_never_answered_is_not_waited_for(
    store: Store, tmp_path: Path
) -> None:
    store.stop()
    with pytest.raises(ConnectionLost, match="Connection refused"):
        Sent(store, tmp_path)
