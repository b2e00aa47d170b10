"""A controller that begins while its bucket is silent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from controller.daemon import serving, stores
from controller.daemon.options import Options
from controller.outputs.bucket import Bucket
from tests.support.object_storage import ObjectStorage
from tests.support.waiting import LONG


async def test_one_that_is_stopped_while_it_waits_for_its_bucket_does_not_serve(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lease already, and another controller waits for that."""
    monkeypatch.setattr(stores, "BUCKET_SECONDS", 2 * LONG)
    served: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        bucket = Bucket.parse("s3://outputs", endpoint)
        options = Options(data=tmp_path, port=0, bucket=bucket)
        serving_it = asyncio.create_task(serving.serve(options, served.append))
        asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        with asked:
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(LONG):
                await serving_it
    assert served == []
