"""One request of a client and its answer, by HTTP/1.1 (RFC 9112), over a connection of its own.

`http.client` loads the package `email` for the headers of an answer, which is 9 of the 60 ms of CPU
time until `fairlead apply` has sent its request (`./dev bench command`).
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.connections.addresses import Address
MAX_LINE = 1 << 16
MAX_HEADERS = 128
MAX_HEADS = 128
_SWITCHES, _FINAL, _EMPTY = 101, 200, (204, 304)
_VERSION = b"HTTP/1."
_MAX_DIGITS = 16
"""Of a size: no more than a machine can hold."""
_DIGITS = {10: "0123456789", 16: "0123456789abcdefABCDEF"}
_BLANKS = " \t"
_BUFFER = 1 << 16
_WITHOUT_MARKS = {ord(mark): None for mark in "-._~"}


class BadAnswer(Exception):
    """The other side does not speak HTTP."""


class BadRequest(ValueError):
    """The request holds what would be read as another one."""


def quoted(text: str) -> str:
    """Return a part of a path or of a query, with all but the unreserved characters of RFC 3986
    (2.3) as `%XX`. Raises UnicodeEncodeError."""
    if text.isascii() and text.translate(_WITHOUT_MARKS).isalnum():
        return text
    from urllib.parse import quote  # with regular expressions, 4 ms, which names and ids save

    return quote(text, safe="")


class Connection:
    """A connection for one request."""

    def __init__(
        self,
        sock: socket.socket,
        host: str,
        *,
        is_exact: bool = False,
        address: Address | None = None,
    ) -> None:
        """`host`: what the header of this name says. `is_exact`: what follows the answer's head may
        be of another protocol, and stays for `received`. `address`: noted in the answer."""
        self.sock = sock
        self._address = address
        self._bytes = _Bytes(sock, by_lines=is_exact)
        self._host = host
        self._answer: Answer | None = None

    def request(
        self,
        method: str,
        target: str,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        stalled: Callable[[float], None] | None = None,
    ) -> None:
        """Send the request. Pieces of content need a header Content-Length. Raises OSError,
        BadRequest. `stalled` is called instead of a TimeoutError for them, with the seconds without
        progress; it may raise that."""
        given = {"Host": self._host, "Accept-Encoding": "identity", **(headers or {})}
        if isinstance(content, bytes):
            given["Content-Length"] = str(len(content))
        elif content is None and method not in ("GET", "DELETE"):
            given["Content-Length"] = "0"
        head = _head(method, target, given)
        if content is None or isinstance(content, bytes):
            self.sock.sendall(head + (content or b""))
            return
        self.sock.sendall(head)
        for piece in content:
            if stalled is None:
                self.sock.sendall(piece)
            else:
                self._send_piece(piece, stalled)

    def _send_piece(self, piece: bytes, stalled: Callable[[float], None]) -> None:
        left, since = memoryview(piece), time.monotonic()
        while left:
            try:
                # After a timeout, sendall() does not tell how much it has sent.
                sent = self.sock.send(left)
            except TimeoutError:
                stalled(time.monotonic() - since)
            else:
                left, since = left[sent:], time.monotonic()

    def hear(self) -> None:
        """Return when the answer has begun, or the other side has ended. Raises OSError; after a
        TimeoutError it may be called again."""
        self._bytes.hear()

    def answer(self) -> Answer:
        """Return the answer when its head is there. Raises OSError, BadAnswer."""
        self._answer = Answer(io.BufferedReader(self._bytes, _BUFFER), self._address)
        self._answer.read_head()
        return self._answer

    def received(self) -> bytes:
        """Return what was received behind the head of an exact answer."""
        return self._bytes.received

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self.sock.close()


class _Bytes(io.RawIOBase):
    """The bytes that come. What was received and is still to be read stays in `received`.

    `by_lines`: gives at most the rest of a line at once, so that a buffer holds nothing behind a
    head. A buffer of one byte did that too, at the cost of two system calls for each byte.
    """

    def __init__(self, sock: socket.socket, *, by_lines: bool) -> None:
        self._sock = sock
        self._by_lines = by_lines
        self.received = b""

    def readable(self) -> bool:
        return True

    def hear(self) -> None:
        """Return when there are bytes to read, or the other side has ended. Raises OSError."""
        if not self.received:
            self.received = self._sock.recv(_BUFFER)

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if not self.received and not self._by_lines:
            return self._sock.recv_into(view)
        self.hear()
        data, end = self.received, len(view)
        if self._by_lines:
            end = min(data.find(b"\n") + 1 or len(data), end)
        size = min(end, len(data))
        view[:size], self.received = data[:size], data[size:]
        return size


class Answer:
    """An answer whose body is read as it comes. Its readers raise OSError, BadAnswer;
    ConnectionResetError when it breaks off before its end. `address`: where it comes from."""

    def __init__(self, file: io.BufferedReader, address: Address | None = None) -> None:
        self.address = address
        self._file = file
        self._headers: dict[str, str] = {}
        self._body: io.BufferedReader
        self.status = 0

    def read_head(self) -> None:
        # What a server says of its progress is no answer yet (RFC 9110, 15.2).
        for _ in range(MAX_HEADS):
            self._read_one_head()
            if self.status >= _FINAL or self.status == _SWITCHES:
                break
        else:
            raise BadAnswer(f"no answer in {MAX_HEADS} heads")
        self._body = io.BufferedReader(_Body(self._file, *self._framing()), _BUFFER)

    def _read_one_head(self) -> None:
        self.status = _status(_first_line(self._file))
        self._headers = {}
        name = ""
        for line in _headers(self._file):
            # Old servers continue a header so (RFC 9112, 5.2).
            if name and line.startswith(tuple(_BLANKS)):
                self._headers[name] += f" {line.strip(_BLANKS)}"
                continue
            name, colon, value = line.partition(":")
            # A name with a blank is read in two ways (RFC 9112, 5.1).
            if not colon or not name or name != name.strip():
                raise BadAnswer("a header without a name")
            name, value = name.lower(), value.strip(_BLANKS)
            if name in self._headers:
                value = f"{self._headers[name]}, {value}"  # which is the same (RFC 9110, 5.3)
            self._headers[name] = value

    def _framing(self) -> tuple[int | None, bool]:
        """Return the size of the body, None if the connection's end tells it, and whether it comes
        in chunks."""
        if self.status in _EMPTY or self.status == _SWITCHES:
            return 0, False
        coding = self._headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise BadAnswer(f"the coding {coding!r}")
            return 0, True
        given = self._headers.get("content-length")
        if given is None:
            return None, False
        # Proxies have joined lengths that are given twice (RFC 9112, 6.3).
        sizes = {_number(size.strip(_BLANKS), 10) for size in given.split(",")}
        if len(sizes) > 1:
            raise BadAnswer(f"the lengths {given[:40]!r}")
        return sizes.pop(), False

    def header(self, name: str) -> str | None:
        return self._headers.get(name.lower())

    def read(self) -> bytes:
        return self._body.read()

    def read1(self, amount: int) -> bytes:
        """Return at most so many bytes as soon as there are some; none at the end."""
        return self._body.read1(amount)

    def readline(self) -> bytes:
        return self._body.readline()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Read no further. The socket stays open."""
        self._file.close()


class _Body(io.RawIOBase):
    """The bytes of a body, without what frames them. `left`: of it, or of its chunk; None: until
    the connection's end."""

    def __init__(self, file: io.BufferedReader, left: int | None, is_chunked: bool) -> None:
        self._file = file
        self._left = left
        self._is_chunked = is_chunked
        self._is_first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._is_chunked and not self._left:
            self._next_chunk()
        if self._left is None:
            return self._file.readinto1(view)
        if not self._left:
            return 0
        count = self._file.readinto1(view[: self._left])
        if not count:
            raise ConnectionResetError
        self._left -= count
        return count

    def _next_chunk(self) -> None:
        if not self._is_first and _line(self._file):
            raise BadAnswer("a chunk that is longer than its size")
        self._is_first = False
        self._left = _number(_line(self._file).partition(";")[0].strip(_BLANKS), 16)
        if not self._left:
            self._is_chunked = False
            for _ in _headers(self._file):  # trailers
                pass


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    # A line break would begin another header, or another request; a blank ends the target.
    if " " in target or not all(map(str.isprintable, lines)):
        raise BadRequest("a blank or a control character in the address or in a header")
    try:
        return "\r\n".join((*lines, "", "")).encode("ascii")
    except UnicodeEncodeError:
        raise BadRequest("the address or a header is not written in ASCII") from None


def _first_line(file: io.BufferedReader) -> str:
    line = file.readline(MAX_LINE)
    # Other protocols may end none of their lines in this way.
    if not (line.startswith(_VERSION) or _VERSION.startswith(line)):
        raise BadAnswer("another protocol than HTTP/1.1")
    return _ended(line)


def _headers(file: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of headers, or of trailers, until the empty one behind them."""
    for _ in range(MAX_HEADERS + 1):
        if not (line := _line(file)):
            return
        yield line
    raise BadAnswer(f"more than {MAX_HEADERS} headers")


def _line(file: io.BufferedReader) -> str:
    """Return the next line of a frame without its end."""
    return _ended(file.readline(MAX_LINE))


def _ended(line: bytes) -> str:
    if not line.endswith(b"\n"):
        if len(line) == MAX_LINE:
            raise BadAnswer(f"a line of more than {MAX_LINE} bytes")
        raise ConnectionResetError
    return line.rstrip(b"\r\n").decode("latin-1")


def _status(line: str) -> int:
    rest = line.partition(" ")[2]
    status = _number(rest[:3], 10)
    if not 100 <= status <= 999 or rest[3:4].strip():
        raise BadAnswer(f"the status {rest[:20]!r}")
    return status


def _number(text: str, base: int) -> int:
    # int() takes signs, blanks, underscores and 0x too.
    if not text or text.strip(_DIGITS[base]) or len(text) > _MAX_DIGITS:
        raise BadAnswer(f"{text[:20]!r} is no size")
    return int(text, base)
