"""Calls that wait for a bucket hold up neither the rest of the controller nor its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet, ref

import pytest

from controller.metric_bucket import MetricBucket
from controller.metric_history import MetricHistory, Sample
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.bucket_threads import BucketThreads
from controller.outputs.own_bucket import OwnBucket
from controller.outputs.store import OutputStore
from tests.support.object_storage import ObjectStorage
from tests.support.waiting import LONG, eventually

MORE_THAN_ASYNCIO_HAS = 40
"""It has 32 at most."""


@pytest.fixture
def silent(storage: ObjectStorage) -> Iterator[Bucket]:
    """A bucket that takes connections and never answers. `storage` gives the keys."""
    # Closing it resets its connections, which ends the calls.
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield Bucket.parse("s3://outputs", f"http://127.0.0.1:{listening.getsockname()[1]}")


async def test_calls_run_at_once_up_to_their_number() -> None:
    threads, go_on, running = BucketThreads(2, "test"), threading.Event(), []

    def wait() -> None:
        running.append(threading.current_thread().name)
        go_on.wait()

    calls = [asyncio.create_task(threads.ask(wait)) for _ in range(3)]
    await eventually(lambda: len(running) == 2)
    assert sorted(running) == ["test_0", "test_1"]
    go_on.set()
    await asyncio.gather(*calls)
    assert len(running) == 3
    threads.close()


async def test_a_call_returns_or_raises_what_it_does() -> None:
    threads = BucketThreads(1, "test")
    assert await threads.ask(int, "7", base=8) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.ask(int, "x")
    threads.close()


async def test_the_error_of_a_call_holds_nothing_that_the_call_held() -> None:
    """Else each part of a log that a bucket refuses stays in memory until the collector comes."""
    threads, held = BucketThreads(1, "test"), WeakSet[_Part]()

    def put() -> None:
        part = _Part()
        held.add(part)
        try:
            raise OSError("what the library says")
        except OSError:
            raise BucketError(f"it takes no {part}") from None

    with pytest.raises(BucketError, match="it takes no") as refused:
        await threads.ask(put)
    # The thread lets go of the last call, and so of all that is not in the error, before this one.
    await threads.ask(int)
    assert not held
    assert refused.value.__context__ is not None
    threads.close()


async def test_an_error_leaves_with_its_last_reader() -> None:
    threads = BucketThreads(1, "test")

    class Refused(BucketError):
        """Only a class of this file has weak references."""

    def put() -> None:
        raise Refused

    async def left() -> ref[Refused]:
        try:
            await threads.ask(put)
        except Refused as error:
            return ref(error)
        raise AssertionError("it was not raised")

    gc.disable()
    try:
        error = await left()
        await threads.ask(int)
        assert error() is None, "a cycle keeps it until the collector comes"
    finally:
        gc.enable()
    threads.close()


class _Part:
    """What a call has in memory."""


async def test_after_the_end_calls_fail_and_those_that_wait_do_too() -> None:
    threads, go_on = BucketThreads(1, "test"), threading.Event()
    begun, waiting = (asyncio.create_task(threads.ask(go_on.wait)) for _ in range(2))
    await asyncio.sleep(0)
    threads.close()
    with pytest.raises(BucketError, match="the controller ends"):
        await waiting
    with pytest.raises(BucketError, match="the controller ends"):
        await threads.ask(int)
    go_on.set()
    assert await begun


def test_a_call_that_never_returns_leaves_the_process_its_end() -> None:
    program = (
        "import threading\n"
        "from controller.outputs.bucket_threads import BucketThreads\n"
        "begun = threading.Event()\n"
        "threads = BucketThreads(1, 'test')\n"
        "threads.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait()\n"
        "threads.close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=LONG)
    assert ended.returncode == 0


async def test_stalled_downloads_leave_asyncio_its_threads(silent: Bucket, tmp_path: Path) -> None:
    outputs = OutputStore(tmp_path)

    async def read() -> None:
        await anext(outputs.read(silent.object("x"), 0, 10))

    reads = [asyncio.create_task(read()) for _ in range(MORE_THAN_ASYNCIO_HAS)]
    # As many as there are threads for.
    await eventually(lambda: _busy("outputs-bucket") == 8)
    assert await asyncio.to_thread(lambda: "free") == "free"
    await asyncio.to_thread(outputs.close)
    for one in reads:
        one.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_the_history_of_use_waits_for_a_bucket_in_its_own_threads(
    silent: Bucket, tmp_path: Path
) -> None:
    own = OwnBucket(silent, "here")
    history = MetricBucket(own, MetricHistory(tmp_path), tmp_path, "a1")
    await history.keep([("one", Sample(1.0, None, None))], 1.0, is_for_sweep=False)
    later = [("one", Sample(1000.0, None, None))]
    tasks = [
        asyncio.create_task(history.keep(later, 1000.0, is_for_sweep=False)),
        asyncio.create_task(history.fetch(1000.0)),
    ]
    await eventually(lambda: _busy("bucket") == 2)
    assert await asyncio.to_thread(lambda: "free") == "free"
    own.close()
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def _busy(name: str) -> int:
    return sum(one.name.startswith(f"{name}_") for one in threading.enumerate())
