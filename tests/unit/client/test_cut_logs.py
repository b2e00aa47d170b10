"""A stored log whose connection breaks goes on at its byte."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.connections.addresses import Addresses
from fairlead.errors import ConnectionLost
from fairlead.rest import CUT_WAITS, ControllerClient
from fairlead.wire.frames import ATTEMPT_HEADER, Frame, Stream, encode


def frame(offset: int, text: bytes) -> bytes:
    return encode(Frame(offset, 0, Stream.STDOUT, text))


class Answer:
    """`sent` is cut, unless the answer is whole."""

    def __init__(self, sent: bytes, *, is_whole: bool = False, attempt: str | None = "a1") -> None:
        self.sent = sent
        self.is_whole = is_whole
        self.attempt = attempt


class Controller:
    """Gives these answers, one for each request; the last one again and again."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.asked: list[dict[str, list[str]]] = []
        left, asked = list(answers), self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked.append(parse_qs(urlsplit(self.path).query))
                answer = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                if answer.attempt is not None:
                    self.send_header(ATTEMPT_HEADER, answer.attempt)
                self.end_headers()
                if answer.sent:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(answer.sent), answer.sent))
                if answer.is_whole:
                    self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


Play = Callable[..., tuple[ControllerClient, Controller, list[float]]]


@pytest.fixture
def play() -> Iterator[Play]:
    with contextlib.ExitStack() as closing:

        def begun(*answers: Answer) -> tuple[ControllerClient, Controller, list[float]]:
            controller, waits = Controller(answers), list[float]()
            closing.callback(controller.close)
            addresses = Addresses(controller.url, lambda _: None, sleep=waits.append)
            return ControllerClient(addresses, "token"), controller, waits

        yield begun


def test_a_stored_log_goes_on_at_its_byte_in_the_same_attempt(play: Play) -> None:
    client, controller, waits = play(
        # The cut is within a frame. The rest comes in other frames, as from another controller.
        Answer(frame(0, b"abc") + frame(3, b"def")[:-2]),
        Answer(b""),
        Answer(frame(0, b"abcdef") + frame(6, b"gh"), is_whole=True),
    )
    frames = list(client.stored_frames("run", job="j"))
    assert b"".join(one.payload for one in frames) == b"abcdefgh"
    assert controller.asked == [
        {"job": ["j"], "offset": ["0"]},
        *[{"job": ["j"], "attempt": ["a1"], "offset": ["3"]}] * 2,
    ]
    assert waits == list(CUT_WAITS[:2])


def test_a_log_that_never_comes_on_is_given_up(play: Play) -> None:
    client, controller, waits = play(Answer(frame(0, b"abc")), Answer(b""))
    with pytest.raises(ConnectionLost):
        list(client.stored_frames("run"))
    assert len(controller.asked) == 2 + len(CUT_WAITS) - 1
    assert waits == list(CUT_WAITS)


@pytest.mark.parametrize(
    "answer", [Answer(b""), Answer(frame(0, b"abc"), attempt=None)], ids=["nothing came", "unnamed"]
)
def test_what_cannot_go_on_is_an_error_at_once(play: Play, answer: Answer) -> None:
    """Of an earlier version it is not known which attempt's log came."""
    client, controller, waits = play(answer)
    with pytest.raises(ConnectionLost):
        list(client.stored_frames("run"))
    assert (len(controller.asked), waits) == (1, [])
