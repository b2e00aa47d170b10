"""Watches from outside under which token each controller acts: in the database and at a shim.

The database notes for each of its tables who changed it, with the token of the lease at that time:
the transaction holds the lease's row, so the notes are in the order of the commits. Between the
controllers and a shim stands a relay, which reads the fence of each request and whether the shim
accepted it. Neither is known to a controller.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.wire.shim import FENCE_HEADER, RUN_HEADER, Fence
from tests.support.postgresql_server import PostgresqlServer

_TABLES = ("runs", "jobs", "attempts", "allocations", "events", "nodes")
_WATCH = """
CREATE TABLE acts (
    id bigserial, token bigint, address text, pid int, act text, at timestamptz
);
CREATE FUNCTION note_act() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO acts (token, address, pid, act, at)
    SELECT token, host(inet_client_addr()), pg_backend_pid(), TG_TABLE_NAME, clock_timestamp()
    FROM leases;
    RETURN NULL;
END $$;
"""
_TRIGGER = """
CREATE TRIGGER note_act AFTER INSERT OR UPDATE OR DELETE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION note_act();
"""
_TWO_UNDER_ONE = """
SELECT token, string_agg(DISTINCT address, ' and ') FROM acts
GROUP BY token HAVING count(DISTINCT address) > 1
"""
_OLDER_AFTER_NEWER = """
SELECT id, token, newest FROM (
    SELECT id, token, max(token) OVER (ORDER BY id) AS newest FROM acts
) AS seen WHERE token < newest
"""
_KEYS_OF_SEVERAL = """
SELECT client_key, count(*) FROM runs WHERE client_key IS NOT NULL
GROUP BY client_key HAVING count(*) > 1
"""


class Notes:
    """What a database notes about who changed it. Each controller has an address of its own."""

    def __init__(self, server: PostgresqlServer, database: str) -> None:
        """`database`: its name. A controller must have made its tables."""
        self._server = server
        self._database = database
        server.sql(database, _WATCH + "".join(_TRIGGER.format(table=one) for one in _TABLES))

    def count(self) -> tuple[int, int]:
        """Return the noted changes, and under how many tokens they were."""
        found = self._rows("SELECT count(*), count(DISTINCT token) FROM acts")
        return int(found[0][0]), int(found[0][1])

    def violations(self) -> list[str]:
        return [
            *(
                f"database: under the token {token} wrote {who}"
                for token, who in self._rows(_TWO_UNDER_ONE)
            ),
            *(
                f"database: act {act} has the token {token}, after {newest}"
                for act, token, newest in self._rows(_OLDER_AFTER_NEWER)
            ),
            *(
                f"database: the client key {key} has {count} runs"
                for key, count in self._rows(_KEYS_OF_SEVERAL)
            ),
        ]

    def runs_of(self, keys: list[str]) -> dict[str, str]:
        """Return the id of each key's run, as it is stored."""
        rows = self._rows("SELECT client_key, id FROM runs WHERE client_key IS NOT NULL")
        wanted = set(keys)
        return {key: run for key, run in rows if key in wanted}

    def _rows(self, query: str) -> list[list[str]]:
        text = self._server.sql(self._database, query)
        return [line.split("|") for line in text.splitlines()]


_HEAD_END = b"\r\n\r\n"
_FENCE = re.compile(rb"\r\n%b: *(\d+\.\d+)\r\n" % FENCE_HEADER.encode(), re.IGNORECASE)
_RUN = re.compile(rb"\r\n%b: *(\S+)\r\n" % RUN_HEADER.encode(), re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) ")
_REFUSED = 400


class Fenced:
    """What a shim was asked under fences, and whether it obeyed. One thread uses it."""

    def __init__(self) -> None:
        self.obeyed = self.refused = 0
        self.fences: set[Fence] = set()
        self.violations: list[str] = []
        self._deciders: dict[Fence, int] = {}
        self._newest: dict[str, Fence] = {}

    def asked(self, run: str) -> Fence | None:
        """Return the newest fence that the shim has obeyed for this run when a request comes."""
        return self._newest.get(run)

    def answered(self, pid: int, run: str, fence: Fence, before: Fence | None, status: int) -> None:
        """`before`: what `asked` returned when the request came."""
        if status >= _REFUSED:
            self.refused += status == 409
            return
        self.obeyed += 1
        self.fences.add(fence)
        if (other := self._deciders.setdefault(fence, pid)) != pid:
            self.violations.append(f"shim: {pid} and {other} acted under {fence.header()}")
        if before is not None and fence < before:
            self.violations.append(
                f"shim: it obeyed {fence.header()} about {run} after {before.header()}"
            )
        self._newest[run] = max(fence, self._newest.get(run, fence))


@contextmanager
def fences_read(path: Path, shim: Path) -> Iterator[Fenced]:
    """Listen at `path` for controllers and pass what they ask on to the shim's socket."""
    fenced, loop, ready = Fenced(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        made = await asyncio.start_unix_server(
            lambda reader, writer: _relayed(fenced, reader, writer, shim), path
        )
        ready.set()
        await stop.wait()
        made.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    path.chmod(0o666)
    try:
        yield fenced
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _relayed(
    fenced: Fenced, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shim: Path
) -> None:
    own: socket.socket = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    pid = struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
    connection = _Connection(fenced, pid)
    try:
        up_reader, up_writer = await asyncio.open_unix_connection(shim)
    except OSError:
        writer.close()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pumped(reader, up_writer, connection.asked))
            group.create_task(_pumped(up_reader, writer, connection.answered))
    except* (OSError, asyncio.CancelledError):
        pass
    finally:
        up_writer.close()
        writer.close()


async def _pumped(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, read: Callable[[bytes], None]
) -> None:
    while data := await reader.read(1 << 16):
        read(data)
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


class _Connection:
    """One connection of a controller to the shim. Its requests come one after the other."""

    def __init__(self, fenced: Fenced, pid: int) -> None:
        self._fenced = fenced
        self._pid = pid
        self._head = b""
        self._waits: tuple[str, Fence, Fence | None] | None = None

    def asked(self, data: bytes) -> None:
        self._head += data
        if _HEAD_END not in self._head:
            # A stream that was upgraded has no more heads.
            self._head = self._head[-8192:]
            return
        fence, run = _FENCE.search(self._head), _RUN.search(self._head)
        self._head = b""
        if fence is not None and run is not None:
            name = run[1].decode()
            self._waits = name, Fence.parse(fence[1].decode()), self._fenced.asked(name)

    def answered(self, data: bytes) -> None:
        if self._waits is not None and (status := _STATUS.search(data)) is not None:
            run, fence, before = self._waits
            self._waits = None
            self._fenced.answered(self._pid, run, fence, before, int(status[1]))
