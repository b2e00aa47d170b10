"""A cut in the stream of a log is told, and so is a controller that vanishes."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import Any, cast

import pytest
import websockets.version
from websockets.sync.server import ServerConnection, serve

from fairlead import rest
from fairlead.errors import ConnectionLost
from fairlead.rest import ControllerClient


def test_a_stream_that_is_cut_is_told_without_the_protocol_s_words() -> None:
    def cut(connection: ServerConnection) -> None:
        connection.send('{"offset": 0}')
        connection.socket.shutdown(socket.SHUT_RDWR)

    with serve(cut, "127.0.0.1", 0) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            port = server.socket.getsockname()[1]
            client = ControllerClient(f"http://127.0.0.1:{port}", "token")
            with pytest.raises(ConnectionLost, match=": the connection was cut; is it running"):
                list(client.followed_frames("run", lambda: None))
        finally:
            server.shutdown()
            serving.join()


class Stream:
    """A WebSocket that gives these messages; None: nothing comes for a while. `answers`: whether
    pings are answered."""

    def __init__(self, *messages: bytes | None, answers: bool) -> None:
        self.pings = 0
        self._messages = list(messages)
        self._answers = answers

    def recv(self, *, timeout: float) -> bytes:
        assert timeout == rest.QUIET_SECONDS
        if (message := self._messages.pop(0)) is None:
            raise TimeoutError
        return message

    def ping(self) -> threading.Event:
        self.pings += 1
        pong = threading.Event()
        if self._answers:
            pong.set()
        return pong


def given(stream: Stream, count: int) -> list[str | bytes]:
    messages = rest._messages(cast(Any, stream))
    return [next(messages) for _ in range(count)]


def test_a_log_without_output_is_followed_on_while_pings_are_answered() -> None:
    stream = Stream(b"a", None, None, None, b"b", None, b"c", answers=True)
    assert given(stream, 3) == [b"a", b"b", b"c"]
    assert stream.pings == 4


def test_a_message_after_a_ping_is_as_good_as_its_answer() -> None:
    assert given(Stream(None, b"a", None, b"b", answers=False), 2) == [b"a", b"b"]


def test_a_controller_that_answers_no_ping_is_away() -> None:
    with pytest.raises(TimeoutError):
        given(Stream(b"a", None, None, answers=False), 2)


def test_a_connection_breaks_when_its_other_end_confirms_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ControllerClient(f"http://127.0.0.1:{server.getsockname()[1]}", None)
        (address,) = client.addresses.tries(repeatable=True)
        with closing(client._connected(address, patience=1.0)) as connection:
            found = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            kept_alive = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (found, bool(kept_alive)) == (1000 * rest.UNHEARD_SECONDS, True)


@pytest.mark.parametrize(("version", "options"), [("14.2", {}), ("15.0", {"proxy": None})])
def test_each_version_of_websockets_gets_the_options_that_it_knows(
    version: str, options: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets.version, "version", version)
    assert rest.without_proxy() == options
