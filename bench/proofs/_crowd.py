"""Many followers in one process: `python -m bench.proofs._crowd SOCKET FOLLOWERS STALLED`.

Each requests the whole log; the stalled ones then read nothing. The process prints a line once all
are connected, and ends when the others have reached the end.
"""

from __future__ import annotations

import selectors
import socket
import sys

HANDSHAKE = (
    b"GET /v1/logs/ws?offset=0 HTTP/1.1\r\nHost: runner\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_END_OF_HEAD = b"\r\n\r\n"
_ANSWERED = b"HTTP/1.1 101 "


def let_in(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendall(HANDSHAKE)
    head = b""
    while _END_OF_HEAD not in head:
        head += connection.recv(1)
    if not head.startswith(_ANSWERED):
        raise SystemExit(f"not let in: {head!r}")
    return connection


def drain(followers: list[socket.socket]) -> int:
    """Return the bytes that came until the runner closed all of them."""
    buffer = bytearray(1 << 20)
    received, left = 0, len(followers)
    with selectors.DefaultSelector() as selector:
        for follower in followers:
            selector.register(follower, selectors.EVENT_READ)
        while left:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                count = key.fileobj.recv_into(buffer)
                received += count
                ended = not count or _is_closing(buffer, count)
                if ended:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    left -= 1
    return received


def _is_closing(buffer: bytearray, count: int) -> bool:
    """Return whether the input ends with an ordinary close frame (1000)."""
    return bytes(buffer[max(0, count - 4) : count]) == b"\x88\x02\x03\xe8"


def main() -> None:
    path, count, stalled = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    followers = [let_in(path) for _ in range(count)]
    sys.stdout.write("in\n")
    sys.stdout.flush()
    sys.stdout.write(f"{drain(followers[: count - stalled])}\n")


if __name__ == "__main__":
    main()
