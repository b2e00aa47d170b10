"""Each line comes to its receiver at least once, whatever ends in between; Loki ignores doubles."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest

from controller.outputs.bucket import BucketError
from controller.shipping import sink
from controller.shipping.log_documents import Origin
from controller.shipping.positions import Position, Positions
from controller.shipping.shipper import Shipper
from fairlead.wire.frames import Stream
from tests.unit.shipping.parts import ATTEMPT, RUNNING, Log, Receiver, Saved, ended, shipper


async def send_all(copies: Shipper, session: aiohttp.ClientSession, log: Log) -> None:
    assert copies.logs is not None
    assert copies.log_shipper is not None
    await copies.log_shipper.catch_up(log.read)
    while copies.logs.waiting_bytes:
        assert await copies.logs.send(session)
        await copies.log_shipper.catch_up(log.read)


async def test_lines_wait_in_the_log_while_the_receiver_is_away(
    receiver: Receiver, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_WAITING_BYTES", 1000)
    log = Log()
    copies = await shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    receiver.status = 503
    texts = [f"line {number}" for number in range(100)]
    for text in texts:
        copies.stored(ATTEMPT, log.add(f"{text}\n".encode()))
    assert not await copies.logs.send(session)
    assert copies.logs.waiting_bytes <= 1300
    receiver.status = 204
    await send_all(copies, session, log)
    assert receiver.lines == texts
    assert (copies.logs.sent, copies.logs.dropped) == (100, 0)


async def test_what_waited_when_a_controller_died_is_sent_by_the_next_one(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    log, saved = Log(), Saved()
    first = await shipper(logs=f"loki={receiver.url}", saved=saved)
    assert first.log_shipper is not None
    first.stored(ATTEMPT, log.add(b"one\ntwo\nthr"))
    await send_all(first, session, log)
    await first.log_shipper.save()
    first.stored(ATTEMPT, log.add(b"ee\nfour\n"))
    second = await shipper(logs=f"loki={receiver.url}", saved=saved)
    second.stored(ATTEMPT, log.add(b"five\n"))
    await send_all(second, session, log)
    assert receiver.lines == ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize("is_saved", [True, False])
async def test_the_last_lines_of_a_quiet_log_are_sent_by_the_next_controller(
    receiver: Receiver, session: aiohttp.ClientSession, is_saved: bool
) -> None:
    log, saved = Log(), Saved()
    first = await shipper(logs=f"loki={receiver.url}", saved=saved)
    assert first.log_shipper is not None
    if is_saved:
        await first.log_shipper.save()
    first.stored(ATTEMPT, log.add(b"one\ntwo\n"))
    second = await shipper(logs=f"loki={receiver.url}", saved=saved)
    await send_all(second, session, log)
    assert receiver.lines == ["one", "two"]


async def test_a_log_that_goes_on_where_its_copies_ended_is_not_read(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    """It may be in a bucket, and large."""
    log, saved = Log(), Saved()
    first = await shipper(logs=f"loki={receiver.url}", saved=saved)
    assert first.log_shipper is not None
    first.stored(ATTEMPT, log.add(b"one\n"))
    await send_all(first, session, log)
    await first.log_shipper.save()
    second = await shipper(logs=f"loki={receiver.url}", saved=saved)
    log.is_away = True
    second.stored(ATTEMPT, log.frames)  # the bucket's end is before the copies' end
    second.stored(ATTEMPT, log.add(b"two\n"))
    await send_all(second, session, log)
    assert receiver.lines == ["one", "two"]
    second.committed([ended(RUNNING)])
    await send_all(second, session, log)


async def test_an_attempt_that_ended_while_nobody_led_is_sent_to_its_end(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    log, saved = Log(), Saved()
    first = await shipper(logs=f"loki={receiver.url}", saved=saved)
    assert first.log_shipper is not None
    await first.log_shipper.save()
    log.add(b"one\ntwo")
    second = await shipper(logs=f"loki={receiver.url}", saved=saved, live=())
    assert second.log_shipper is not None
    await send_all(second, session, log)
    assert receiver.lines == ["one", "two"]
    await second.log_shipper.save()
    assert saved.positions == {}, "nothing is left to send"


async def test_a_log_that_is_away_or_was_removed_holds_up_nothing(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    log, saved = Log(), Saved()
    origin = Origin("run", "ada", "main/0", "removed")
    saved.positions = {"removed": Position(origin, 7)}
    copies = await shipper(logs=f"loki={receiver.url}", saved=saved)
    assert copies.log_shipper is not None
    log.is_away = True
    with pytest.raises(BucketError):
        await copies.log_shipper.catch_up(log.read)
    log.is_away = False
    await send_all(copies, session, log)
    await copies.log_shipper.save()
    assert set(saved.positions) == {ATTEMPT}


async def test_a_damaged_log_ends_there_and_holds_up_no_other(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    log = Log()
    copies = await shipper(logs=f"loki={receiver.url}")

    async def damaged(attempt_id: str, offset: int) -> AsyncGenerator[bytes, None]:
        yield b"x" * 64

    assert copies.log_shipper is not None
    log.add(b"one\n")
    copies.stored(ATTEMPT, log.add(b"two\n"))
    await copies.log_shipper.catch_up(damaged)
    copies.stored(ATTEMPT, log.add(b"three\n"))
    await send_all(copies, session, log)
    assert receiver.lines == ["three"]


async def test_a_fault_in_copies_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty(Saved):
        async def load(self) -> dict[str, Position]:
            raise ValueError("a fault")

    copies = await shipper(logs="loki=http://127.0.0.1:1")
    assert copies.log_shipper is not None
    monkeypatch.setattr(copies.log_shipper, "_positions", Faulty())
    assert not await copies.log_shipper._try("they wait", copies.log_shipper.load)


@pytest.mark.parametrize("seed", range(12))
async def test_controllers_that_die_at_any_moment_lose_no_line(
    receiver: Receiver,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(sink, "MAX_WAITING_BYTES", 1500)
    monkeypatch.setattr(sink, "BATCH_BYTES", 600)
    log, saved, number = Log(), Saved(), 0
    copies = await shipper(logs=f"loki={receiver.url}", saved=saved)
    for _ in range(150):
        assert copies.logs is not None
        assert copies.log_shipper is not None
        match chance.randrange(8):
            case 0 | 1 | 2:
                number += 1
                stream = chance.choice((Stream.STDOUT, Stream.STDERR))
                text = f"{stream.name} {number}" + chance.choice(("\n", "", "\nand\npart of "))
                copies.stored(ATTEMPT, log.add(text.encode(), stream=stream))
            case 3 | 4:
                receiver.status = chance.choice((204, 204, 503))
                await copies.logs.send(session)
            case 5:
                await copies.log_shipper.catch_up(log.read)
            case 6:
                await copies.log_shipper.save()
            case _:
                copies = await shipper(logs=f"loki={receiver.url}", saved=saved)
    receiver.status = 204
    copies.committed([ended(RUNNING)])
    await send_all(copies, session, log)
    for stream in (Stream.STDOUT, Stream.STDERR):
        whole = b"".join(one.payload for one in log.frames if one.stream is stream)
        found = set(receiver.lines_of_stream(stream.name.lower()))
        assert {line for line in whole.decode().split("\n") if line} <= found | {""}


async def test_positions_are_in_a_file_and_a_damaged_one_counts_as_none(tmp_path: Path) -> None:
    positions = Positions(tmp_path / "shipped")
    assert await positions.load() == {}
    kept = {"a": Position(Origin("run", "ada", "main/0", "a"), 12)}
    await positions.save(kept, 1.0)
    assert await Positions(tmp_path / "shipped").load() == kept
    (tmp_path / "shipped").write_bytes(b"{")
    assert await positions.load() == {}
