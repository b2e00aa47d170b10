"""The client's end of HTTP/1.1: its requests, and answers in pieces, cut, and of any bytes."""

from __future__ import annotations

import io
import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.connections.http1 import (
    MAX_HEADERS,
    MAX_HEADS,
    MAX_LINE,
    Answer,
    BadAnswer,
    BadRequest,
    Connection,
)
from tests.support.waiting import LONG

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Pieces(io.RawIOBase):
    """Gives bytes in these pieces, as a socket does."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if not self._pieces:
            return 0
        piece, self._pieces[0] = self._pieces[0][: len(view)], self._pieces[0][len(view) :]
        if not self._pieces[0]:
            del self._pieces[0]
        view[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize("is_exact", [False, True])
def test_who_waits_for_the_beginning_of_an_answer_reads_all_of_it(*, is_exact: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, "h", is_exact=is_exact)
        ours.settimeout(0.01)
        with pytest.raises(TimeoutError):
            connection.hear()
        theirs.sendall(OK + b"Content-Length: 2\r\n\r\nok")
        ours.settimeout(LONG)
        connection.hear()
        connection.hear()
        answer = connection.answer()
        assert (answer.status, answer.read()) == (200, b"ok")
        connection.close()


def answer_of(*pieces: bytes) -> Answer:
    answer = Answer(io.BufferedReader(Pieces(pieces)))
    answer.read_head()
    return answer


def whole(*pieces: bytes) -> tuple[int, bytes]:
    answer = answer_of(*pieces)
    return answer.status, answer.read()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhellomore", (200, b"hello")),
        (OK + b"content-length:0\r\n\r\nmore", (200, b"")),
        (OK + b"\r\nto the end", (200, b"to the end")),
        (b"HTTP/1.0 404 Not Found\n\nto the end", (404, b"to the end")),
        (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", (200, b"x")),
        (b"HTTP/1.1 204 No Content\r\n\r\nmore", (204, b"")),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nmore!", (304, b"")),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\nmore", (101, b"")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", (200, b"x")),
        (CHUNKED + b"5\r\nhello\r\n1 ; a=b\r\n!\r\n0\r\nTrailer: x\r\n\r\nmore", (200, b"hello!")),
        (OK + b"A: b\r\n goes: on\r\n\tand on\r\nContent-Length: 1\r\n\r\nx", (200, b"x")),
        (OK + b"Content-Length: 1\r\nA: b\r\ncontent-length: 1\r\n\r\nx", (200, b"x")),
        (OK + b"Content-Length: 1, 01\r\n\r\nx", (200, b"x")),
        (OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (200, b"")),
        (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", (200, b"0123456789")),
    ],
)
@given(cuts=st.lists(st.integers(0, 90), max_size=4))
def test_an_answer_is_the_same_in_any_pieces(
    data: bytes, expected: tuple[int, bytes], cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert whole(*(data[a:b] for a, b in itertools.pairwise(bounds))) == expected


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_is_never_taken_for_whole(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(ConnectionResetError):
            whole(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        # A record of TLS, a frame of HTTP/2 and a page: none ends a line.
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\0\0\x12\4\0\0\0\0\0",
        b"<html>",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Name : x\r\n\r\n",
        OK + b" goes on: from nothing\r\n\r\n",
        OK + b": x\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: +5\r\n\r\nhello",
        OK + b"Content-Length: 1_0\r\n\r\n",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 3\r\n\r\nhello",
        OK + b"Content-Length: 3, 5\r\n\r\nhello",
        OK + b"Content-Length:\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x5\r\nhello\r\n",
        CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 " + b"x" * MAX_LINE + b"\r\n\r\n",
        OK + b"".join(b"H%d: x\r\n" % n for n in range(MAX_HEADERS + 1)) + b"\r\n",
        # What never ends: one header, trailers, and progress.
        OK + b"Set-Cookie: x\r\n" * (MAX_HEADERS + 1),
        OK + b"A: b\r\n" + b" on\r\n" * MAX_HEADERS,
        CHUNKED + b"0\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1),
        b"HTTP/1.1 102 Processing\r\n\r\n" * MAX_HEADS,
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_no_answer_is_told(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        whole(data)


@given(st.sampled_from((b"", OK, CHUNKED)), st.binary(max_size=200))
def test_any_bytes_end_as_an_answer_or_as_an_error_of_it(begin: bytes, rest: bytes) -> None:
    try:
        _, body = whole(begin + rest)
    except (BadAnswer, ConnectionResetError):
        body = b""
    # What it takes for the body was sent, in this order.
    sent = iter(begin + rest)
    assert all(byte in sent for byte in body)


def test_lines_come_as_they_are_sent() -> None:
    answer = answer_of(CHUNKED, b"4\r\none\n\r\n", b"6\r\ntwo\nth\r\n", b"4\r\nree\n\r\n0\r\n\r\n")
    assert list(answer) == [b"one\n", b"two\n", b"three\n"]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield ours, theirs


def test_a_request_says_where_it_goes_and_how_long_it_is(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    connection = Connection(ours, "host:8700")
    connection.request("POST", "/v1/runs?a=b", b"{}", {"Authorization": "Bearer x"})
    head, _, body = theirs.recv(1 << 16).partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert (first, body) == ("POST /v1/runs?a=b HTTP/1.1", b"{}")
    assert {"Host: host:8700", "Authorization: Bearer x", "Content-Length: 2"} < set(headers)


@pytest.mark.parametrize(
    ("target", "token"),
    [
        ("/ä", "x"),
        ("/", "ä"),
        ("/a b", "x"),
        ("/a\r\nHost:", "x"),
        ("/", "x\r\nHost: other"),
        ("/", "x\ny"),
        ("/\x7f", "x"),
    ],
)
def test_a_request_that_would_be_read_as_two_is_not_sent(
    ends: tuple[socket.socket, socket.socket], target: str, token: str
) -> None:
    ours, theirs = ends
    with pytest.raises(BadRequest):
        Connection(ours, "host").request("GET", target, None, {"Authorization": token})
    ours.close()
    assert theirs.recv(1) == b""


SWITCHED = b"HTTP/1.1 101 Switching\r\nA: b\r\nC: d\r\n\r\n"


@pytest.mark.parametrize("behind", [b"", b"frames\nand more", b"\n"])
@pytest.mark.parametrize("cut", range(1, len(SWITCHED) + 1))
def test_what_follows_a_head_is_left_to_another_protocol(behind: bytes, cut: int) -> None:
    # Each packet is received by itself, as a piece of a stream may be.
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    data = SWITCHED + behind
    with closing(ours), closing(theirs):
        for piece in filter(None, (data[:cut], data[cut:], b"later")):
            theirs.sendall(piece)
        connection = Connection(ours, "host", is_exact=True)
        answer = connection.answer()
        assert (answer.status, answer.header("a"), answer.header("c")) == (101, "b", "d")
        answer.close()
        rest = connection.received()
        while not rest.endswith(b"later"):
            rest += ours.recv(100)
        assert rest == behind + b"later"


def test_a_header_that_is_given_twice_or_goes_on_is_read_whole() -> None:
    answer = answer_of(OK, b"A: b\r\n c\r\nX: y\r\na: d\r\n\r\n")
    assert (answer.header("A"), answer.header("x")) == ("b c, d", "y")
