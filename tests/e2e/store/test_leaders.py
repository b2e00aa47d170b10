"""Controllers that share a database: one leads, each answers, and a dead leader is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import sqlalchemy as sa

from controller.logs.parts import LogBucket, Part
from controller.outputs.bucket import Bucket
from controller.store.errors import LeaseHeld, StoreUnavailable
from controller.store.examination import postgresql_facts
from controller.store.peers import LEADING_LOCK, WRITING_LOCK, Peers
from controller.store.postgresql import PostgresqlDatabase
from controller.store.schema import leases
from controller.store.sql import SqlStore
from controller.tls import OWN_NAME, own_certificate
from fairlead.errors import ApiError, ConnectionLost
from fairlead.rest import ControllerClient, decode
from fairlead.wire.errors import LEADS_NO_MORE
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from tests.support.daemons import DaemonFailed
from tests.support.object_storage import ObjectStorage
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess, run_cli
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.e2e
HELLO = {"type": "task", "image": "busybox", "commands": ["true"]}


class Controllers:
    """Three on one database. All have the keys that the first one made."""

    def __init__(self, folder: Path, database_url: str, *options: str | Path) -> None:
        self._options = options
        self.all = [self._made(folder / name, database_url) for name in ("one", "two", "three")]

    def start(self) -> None:
        first, *others = self.all
        first.start()
        for other in others:
            shutil.copytree(first.data, other.data, ignore=lambda *_: _LOCAL)
            other.start()

    def close(self) -> None:
        for one in self.all:
            one.close()

    def _made(self, folder: Path, database_url: str) -> ControllerProcess:
        made = ControllerProcess(folder, "--database", database_url, *self._options)
        made.daemon.argv.extend(["--url", made.url])
        return made

    @property
    def token(self) -> str:
        return self.all[0].token

    def seen_by(self, one: ControllerProcess) -> dict[str, str]:
        env = {"FAIRLEAD_URL": one.url, "FAIRLEAD_TOKEN": self.token}
        listed = run_cli("controllers", "--json", env=env).succeeded().json["controllers"]
        return {found["url"]: found["status"] for found in listed}

    def has_successor(self) -> bool:
        """Return whether another than the first has begun to lead."""
        _, *others = self.all
        return any("this controller leads now" in one.daemon.log.read_text() for one in others)

    def submit(self, to: ControllerProcess, key: str) -> Any:
        """The run's id, by a client that tries again when its connection was cut, or when the
        leader says that it may have been replaced: on a busy machine it may renew late."""
        return self.post(to, "/v1/runs", {"configuration": HELLO, "client_key": key})["id"]

    def post(self, to: ControllerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer, by a client that tries again."""
        client = ControllerClient(to.url, self.token)

        def posted() -> dict[str, Any] | None:
            try:
                return decode(client.post(path, body), dict[str, Any])
            except (ConnectionLost, ApiError) as error:
                if isinstance(error, ApiError) and error.code != LEADS_NO_MORE:
                    raise
                return None

        answer = wait_until(posted, what="an answer")
        assert answer is not None
        return answer

    def leader(self, seen_by: ControllerProcess) -> ControllerProcess:
        def leading() -> list[ControllerProcess]:
            seen: dict[str, str] = {}
            # The leader may end while it answers.
            with suppress(AssertionError):
                seen = self.seen_by(seen_by)
            return [one for one in self.all if seen.get(one.url) == "leads"]

        (found,) = wait_until(leading, what="a controller to lead")
        return found


_LOCAL = ["logs", "outputs", "blobs", "metrics", "controller.lock"]


@pytest.fixture
def controllers(database_url: str, tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(tmp_path, database_url)
    with closing(made):
        made.start()
        yield made


def test_each_answers_and_a_dead_leader_is_replaced_with_all_that_was_accepted(
    controllers: Controllers,
) -> None:
    first, second, third = controllers.all
    assert controllers.seen_by(second) == {
        first.url: "leads",
        second.url: "waits",
        third.url: "waits",
    }
    made = {
        key: controllers.submit(to, key) for key, to in zip("abc", controllers.all, strict=True)
    }
    for path in ("/v1/runs", f"/v1/runs/{made['a']}", f"/v1/runs/{made['b']}/attempts"):
        wait_until(partial(_answer_alike, controllers, path), what=f"equal answers to {path}")

    first.kill9()
    assert controllers.submit(third, "d") not in made.values()
    successor = controllers.leader(third)
    assert successor in (second, third)
    assert {key: controllers.submit(second, key) for key in made} == made

    first.start()
    assert controllers.seen_by(first)[first.url] == "waits"
    assert successor.stop() == 0
    assert controllers.submit(first, "a") == made["a"]
    assert controllers.leader(first) is not successor


def _answer_alike(controllers: Controllers, path: str) -> bool:
    """Between two answers, the leader may find why a run waits."""
    clients = [ControllerClient(one.url, controllers.token) for one in controllers.all]
    return len({client.get(path) for client in clients}) == 1


def test_a_follower_reads_the_log_of_an_ended_run_from_the_bucket(
    database_url: str, tmp_path: Path, storage: ObjectStorage
) -> None:
    options = ["--bucket", str(storage.bucket), "--bucket-endpoint", storage.endpoint]
    made = Controllers(tmp_path, database_url, *options)
    with closing(made):
        made.start()
        first, *others = made.all
        run = made.submit(first, "k")
        client = ControllerClient(first.url, made.token)
        view = decode(client.post(f"/v1/runs/{run}/stop", {}), dict[str, Any])
        attempt = view["jobs"][0]["attempts"][0]["id"]
        wait_until(lambda: _has_ended(client, run), what="the end of the run")
        _put_log(storage.bucket, (first.data / "installation").read_text().strip(), attempt)
        read = [
            ControllerClient(one.url, made.token).get(f"/v1/runs/{run}/{path}")
            for path in ("logs?format=text", "logs/window", "logs/search?text=9")
            for one in made.all
        ]
        for one in others:
            copies = one.data / "followed-logs"
            wait_until(partial(_has_files, copies), what=f"a copy in {copies}")
    assert read[:3] == [_LINES] * 3
    assert read[3:6] == [read[3]] * 3
    assert read[6:] == [read[6]] * 3


async def test_a_live_log_goes_on_at_a_follower_when_its_leader_is_killed(
    database_url: str, tmp_path: Path, storage: ObjectStorage
) -> None:
    # One for each installation.
    place = msgspec.structs.replace(storage.bucket, prefix="live")
    options = ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]
    made = Controllers(tmp_path, database_url, *options)
    with closing(made):
        await asyncio.to_thread(made.start)
        first, follower, _ = made.all
        run = await asyncio.to_thread(made.submit, first, "k")
        client = ControllerClient(follower.url, made.token)
        view = await asyncio.to_thread(_view, client, run)
        attempt = view["jobs"][0]["attempts"][0]["id"]
        installation = (first.data / "installation").read_text().strip()
        await asyncio.to_thread(_put_log, place, installation, attempt, is_whole=False)
        got = [bytearray() for _ in range(5)]
        async with aiohttp.ClientSession() as session:
            url = f"{follower.url}/v1/runs/{run}/logs/ws"
            reads = [_read_to_the_end(session, url, made.token, into) for into in got]
            reading = [asyncio.create_task(read) for read in reads]
            await eventually(lambda: all(into == _LINES for into in got))
            copies = follower.data / "live-logs"
            assert len(await asyncio.to_thread(lambda: list(copies.glob("*/*/*")))) == 1
            await asyncio.to_thread(first.kill9)
            await asyncio.to_thread(made.submit, follower, "another")
            assert await asyncio.to_thread(made.leader, follower) is not first
            assert not any(reader.done() for reader in reading)
            await asyncio.to_thread(made.post, follower, f"/v1/runs/{run}/stop", {})
            await asyncio.gather(*reading)
    assert got == [_LINES] * 5


async def test_watches_at_a_follower_go_on_uncut_when_the_leader_is_killed(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    run = await asyncio.to_thread(controllers.submit, first, "k")
    paths = (f"/v1/runs/{run}/watch", f"/v1/events/watch?run={run}")
    headers = {"Authorization": f"Bearer {controllers.token}"}
    async with aiohttp.ClientSession(base_url=follower.url, headers=headers) as session:
        watches: list[list[dict[str, Any]]] = [[] for _ in paths * 3]
        reads = [_watch(session, path, into) for path, into in zip(paths * 3, watches, strict=True)]
        reading = [asyncio.create_task(read) for read in reads]
        await eventually(lambda: all(watches))
        await asyncio.to_thread(first.kill9)
        await asyncio.to_thread(controllers.post, follower, f"/v1/runs/{run}/stop", {})
        # To its end: a watch that was cut fails here.
        await asyncio.gather(*reading)
    events = decode(
        await asyncio.to_thread(
            ControllerClient(follower.url, controllers.token).get, f"/v1/events?run={run}"
        ),
        dict[str, Any],
    )["events"]
    for lines, seen in zip(watches[::2], watches[1::2], strict=True):
        assert lines[-1]["run"]["status"] == "terminated"
        assert [one["event"]["seq"] for one in seen] == [event["seq"] for event in events]


async def _watch(session: aiohttp.ClientSession, path: str, into: list[dict[str, Any]]) -> None:
    """Read the lines that are no heartbeats. Raises aiohttp.ClientError if the watch is cut."""
    async with session.get(path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        async for line in answer.content:
            told = msgspec.json.decode(line)
            if told.get("run") or told.get("event"):
                into.append(told)


async def _read_to_the_end(
    session: aiohttp.ClientSession, url: str, token: str, into: bytearray
) -> None:
    has_ended: bool = await eventually(lambda: _read_on(session, url, token, into))
    assert has_ended


async def _read_on(session: aiohttp.ClientSession, url: str, token: str, into: bytearray) -> bool:
    """Follow the log from where the reader is; return whether that was its end."""
    decoder, headers = Decoder(), {"Authorization": f"Bearer {token}"}
    try:
        async with session.ws_connect(f"{url}?offset={len(into)}", headers=headers) as socket:
            async for message in socket:
                if isinstance(message.data, bytes):
                    for frame in decoder.feed(message.data):
                        assert frame.offset == len(into)
                        into += frame.payload
            return socket.close_code == 1000
    except aiohttp.ClientError:
        return False


def _view(client: ControllerClient, run: str) -> dict[str, Any]:
    return decode(client.get(f"/v1/runs/{run}"), dict[str, Any])


def _has_ended(client: ControllerClient, run: str) -> bool:
    return _view(client, run)["jobs"][0]["attempts"][0]["finished_at"] is not None


def _has_files(folder: Path) -> bool:
    return any(folder.glob("*/*/*.seg"))


_LINES = b"".join(b"line %d\n" % number for number in range(100))


def _put_log(place: Bucket, installation: str, attempt_id: str, *, is_whole: bool = True) -> None:
    logs, end, frames = LogBucket(place, installation), 0, b""
    for number in range(100):
        frame = Frame(end, number, Stream.STDOUT, b"line %d\n" % number)
        frames, end = frames + encode(frame), frame.end
    logs.put(attempt_id, Part(0, end), frames)
    if is_whole:
        logs.complete(attempt_id)


def test_a_paused_leader_is_replaced_and_follows_when_it_goes_on(controllers: Controllers) -> None:
    first, second, third = controllers.all
    run_id = controllers.submit(second, "k")
    first.daemon.signal(signal.SIGSTOP)
    wait_until(controllers.has_successor, what="a successor")
    assert controllers.submit(second, "k") == run_id
    first.daemon.signal(signal.SIGCONT)
    wait_until(
        lambda: "another controller has taken over" in first.daemon.log.read_text(),
        what="the paused one to know",
    )
    # It answers as the others do, and leads again when they are gone.
    assert controllers.submit(first, "k") == run_id
    later = controllers.submit(first, "later")
    second.kill9()
    third.kill9()
    assert controllers.submit(first, "later") == later
    assert controllers.seen_by(first)[first.url] == "leads"
    assert first.stop() == 0


def test_while_the_database_hangs_a_submission_is_answered_and_is_done_once(
    controllers: Controllers, postgresql: PostgresqlServer, database_url: str
) -> None:
    leader, other, _ = controllers.all
    controllers.submit(other, "before")
    name = f"test{database_url.partition('/test')[2].partition('?')[0]}"
    query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}'"
    backends = [int(pid) for pid in postgresql.sql("postgres", query).split()]
    client = ControllerClient(leader.url, controllers.token)
    body = {"configuration": HELLO, "client_key": "k"}
    for backend in backends:
        os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(ApiError) as refused:
            client.post("/v1/runs", body)
    finally:
        for backend in backends:
            with suppress(ProcessLookupError):
                os.kill(backend, signal.SIGCONT)
    assert refused.value.status == 503
    run = controllers.submit(other, "k")
    assert controllers.submit(other, "k") == run
    listed = decode(ControllerClient(other.url, controllers.token).get("/v1/runs"), dict[str, Any])
    assert len(listed["runs"]) == 2


def test_one_whose_certificate_broke_meanwhile_leads_with_the_one_that_it_has(
    database_url: str, tmp_path: Path
) -> None:
    own_certificate(tmp_path)
    certificate = tmp_path / OWN_NAME
    tls = ("--tls-cert", certificate, "--tls-key", certificate)
    controllers = Controllers(tmp_path, database_url, *tls)
    first, second = controllers.all = controllers.all[:2]
    with closing(controllers):
        controllers.start()
        certificate.write_text("half of it")
        first.kill9()
        leads = "this controller leads now"
        wait_until(lambda: leads in second.daemon.log.read_text(), what="a successor")
        wait_until(second.is_healthy, what="an answer")
        assert second.stop() == 0


async def test_a_leader_that_waits_for_the_lock_is_not_taken_for_dead(database_url: str) -> None:
    """One that gives its lease back, or was paused, still has the lock when the next one leads."""
    ends, leads, waits = (Peers(url=f"http://{name}", version="1") for name in "abc")
    former = SqlStore(PostgresqlDatabase(database_url, peers=ends), lease_seconds=0.0)
    leading = PostgresqlDatabase(database_url, peers=leads)
    store = SqlStore(leading)
    database = PostgresqlDatabase(database_url, peers=waits)
    await former.open()
    await store.open()
    assert (ends.has_lock, leads.has_lock) == (True, False)
    ends.leave()

    assert _may_lead(waits) is False
    assert waits.has_lock is False
    with pytest.raises(LeaseHeld):
        await SqlStore(database).open()
    assert _may_lead(waits) is False, "it leaves the lock, which it has, to the leader"

    async def takes_the_lock() -> bool:
        await store.renew_lease()
        return leads.has_lock

    # The server frees the lock of a session some time after its client has closed it.
    has_it: bool = await eventually(takes_the_lock)
    assert has_it
    await store.renew_lease()
    assert _may_lead(waits) is False
    # The server must not take its session for one of the leader's.
    await former.close()
    leading.leave()
    await eventually(lambda: _may_lead(waits))
    successor = SqlStore(database)
    await successor.open()
    for opened in (store, successor):
        await opened.close()


async def test_a_server_that_restarts_makes_no_leader_dead(
    database_url: str, postgresql: PostgresqlServer
) -> None:
    leads, waits = (Peers(url=f"http://{name}", version="1") for name in "ab")
    leading = PostgresqlDatabase(database_url, peers=leads)
    store = SqlStore(leading)
    await store.open()
    waiting = PostgresqlDatabase(database_url, peers=waits)
    assert _may_lead(waits) is False
    await asyncio.to_thread(postgresql.cut_connections, _name(database_url))
    with pytest.raises(StoreUnavailable):
        waits.look()
    assert _may_lead(waits) is False
    assert waits.has_lock is False, "the leader gets it again"

    async def has_renewed() -> bool:
        # The sessions that were cut are noticed first.
        with suppress(StoreUnavailable):
            await store.renew_lease()
        assert _may_lead(waits) is False
        return leads.has_lock

    renewed: bool = await eventually(has_renewed)
    assert renewed
    await store.renew_lease()
    assert _may_lead(waits) is False
    leading.leave()
    await eventually(lambda: _may_lead(waits))
    await store.close()
    waiting.leave()


@pytest.mark.parametrize("lock", [LEADING_LOCK, WRITING_LOCK])
async def test_a_leader_that_lost_one_session_is_not_taken_for_dead(
    lock: int, database_url: str, postgresql: PostgresqlServer
) -> None:
    leads, waits = (Peers(url=f"http://{name}", version="1") for name in "ab")
    leading = PostgresqlDatabase(database_url, peers=leads)
    store = SqlStore(leading)
    await store.open()
    waiting = PostgresqlDatabase(database_url, peers=waits)
    holders = f"FROM pg_locks WHERE locktype = 'advisory' AND objid = {lock}"

    async def answer(query: str) -> str:
        return await asyncio.to_thread(postgresql.sql, _name(database_url), query + holders)

    async def is_held(wanted: str) -> bool:
        # A session that was ended is noticed first.
        with suppress(StoreUnavailable):
            await store.renew_lease()
        assert _may_lead(waits) is False
        return await answer("SELECT count(*) ") == wanted

    assert await is_held("1")
    await answer("SELECT pg_terminate_backend(pid, 10000) ")
    assert await answer("SELECT count(*) ") == "0"
    for _ in range(3):
        assert _may_lead(waits) is False
    assert waits.has_lock is False, "the leader gets it again"
    again: bool = await eventually(partial(is_held, "1"))
    assert again
    # It shows that it has the lock from the next renewal on.
    await store.renew_lease()
    leading.leave()
    await eventually(lambda: _may_lead(waits))
    await store.close()
    waiting.leave()


@pytest.fixture
def plain_url(database_url: str, postgresql: PostgresqlServer) -> str:
    """That of a database as a role sees it that may not read the server's views."""
    database = _name(database_url)
    for statement in (
        "DO $$ BEGIN CREATE ROLE plain LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
        "GRANT ALL ON SCHEMA public TO plain",
        "REVOKE ALL ON pg_locks, pg_stat_activity FROM PUBLIC",
    ):
        postgresql.sql(database, statement)
    return database_url.replace("fairlead@", "plain@")


async def test_a_role_that_may_not_read_the_servers_views_takes_over_at_once(
    plain_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    leads, waits = (Peers(url=f"http://{name}", version="1") for name in "ab")
    leading = PostgresqlDatabase(plain_url, peers=leads)
    store = SqlStore(leading)
    await store.open()
    waiting = PostgresqlDatabase(plain_url, peers=waits)
    assert _may_lead(waits) is False
    facts = await asyncio.to_thread(postgresql_facts, PostgresqlDatabase(plain_url))
    assert (facts.why, facts.is_locked) == (None, True)
    # The session of its lock has ended, and the one in which it writes is there.
    leads.leave()

    def has_looked_for_writers() -> bool:
        assert _may_lead(waits) is False
        facts = postgresql_facts(PostgresqlDatabase(plain_url))
        assert facts.why is None
        return not facts.is_locked

    await eventually(has_looked_for_writers)
    assert waits.has_lock is False, "the leader gets it again"
    await store.renew_lease()
    leading.leave()
    # The lease lasts for 30 s.
    await eventually(lambda: _may_lead(waits))
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    await store.close()
    waiting.leave()


async def test_a_leader_shows_that_it_writes_while_others_look_for_that(database_url: str) -> None:
    leads = Peers(url="http://a", version="1")
    looking = PostgresqlDatabase(database_url).reader()
    leading = PostgresqlDatabase(database_url, peers=leads)
    with looking.begin() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITING_LOCK)))
        opening = asyncio.create_task((store := SqlStore(leading)).open())
        is_waiting = sa.text(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
        await eventually(lambda: connection.execute(is_waiting).scalar_one() == 1)
    await opening
    with looking.begin() as connection:
        free = sa.select(sa.func.pg_try_advisory_xact_lock(WRITING_LOCK))
        assert connection.execute(free).scalar_one() is False
    looking.dispose()
    await store.close()


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _may_lead(peers: Peers) -> bool:
    sight = peers.look()
    assert sight is not None
    return sight.may_lead


def test_one_of_another_installation_or_with_other_keys_or_another_bucket_is_refused(
    controllers: Controllers,
) -> None:
    *_, third = controllers.all
    third.kill9()
    installation = (third.data / "installation").read_text()
    (third.data / "installation").write_text("another\n")
    with pytest.raises(DaemonFailed, match="the data folder belongs to the installation another"):
        third.start()
    (third.data / "installation").write_text(installation)
    third.daemon.argv.extend(["--logs-bucket", "s3://theirs"])
    with pytest.raises(DaemonFailed, match="has another bucket: give all"):
        third.start()
    (third.data / "id_ed25519").unlink()
    with pytest.raises(DaemonFailed, match=r"has other keys: copy id_ed25519 and secrets\.key"):
        third.start()


async def test_one_that_tries_to_lead_does_not_wait_for_the_row_of_a_vanished_leader(
    database_url: str,
) -> None:
    former = SqlStore(PostgresqlDatabase(database_url), lease_seconds=0.0)
    await former.open()
    vanished = PostgresqlDatabase(database_url)
    with vanished.writer().begin() as in_a_transaction:
        in_a_transaction.execute(sa.select(leases).with_for_update())
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await SqlStore(PostgresqlDatabase(database_url, peers=_peers())).open()
    vanished.leave()
    successor = SqlStore(PostgresqlDatabase(database_url, peers=_peers()))
    await successor.open()
    for opened in (former, successor):
        await opened.close()


async def test_behind_a_pool_nobody_takes_the_leaders_lock(
    database_url: str, postgresql: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool (PgBouncer) announces a process of its own; the rest here is the server's."""
    folder = postgresql.folder / "pool"
    folder.mkdir()
    server = await asyncio.start_unix_server(
        lambda *client: _pooled(postgresql, *client), folder / ".s.PGSQL.5432"
    )
    store = SqlStore(
        PostgresqlDatabase(
            database_url.replace(str(postgresql.folder), str(folder)), peers=(peers := _peers())
        )
    )
    async with server:
        await store.open()
        assert not peers.has_lock
        assert "behind a pool of sessions: give its own address" in caplog.text
        await store.close()


async def _pooled(
    postgresql: PostgresqlServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    there = await asyncio.open_unix_connection(postgresql.folder / ".s.PGSQL.5432")

    async def up() -> None:
        while data := await reader.read(1 << 16):
            there[1].write(data)
        there[1].close()

    sending = asyncio.create_task(up())
    is_announced = False
    answers = b""
    while data := await there[0].read(1 << 16):
        answers += data
        # BackendKeyData: its process and its secret (the protocol's chapter "Message Formats").
        at = answers.find(_KEY_DATA)
        if not is_announced and 0 <= at <= len(answers) - len(_KEY_DATA) - 8:
            pid = at + len(_KEY_DATA)
            answers = answers[:pid] + b"\0\0\0\1" + answers[pid + 4 :]
            is_announced = True
        if is_announced:
            writer.write(answers)
            answers = b""
    writer.close()
    await sending


_KEY_DATA = b"K\0\0\0\x0c"


def _peers() -> Peers:
    return Peers(url="http://own", version="1")
