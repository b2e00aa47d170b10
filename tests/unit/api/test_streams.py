"""The end of open streams when a controller stops."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from controller.api.http.streams import END_SECONDS, STREAMS, Ending, end_streams


async def test_a_reader_who_stalls_holds_up_the_end_of_all_streams_for_a_moment_only() -> None:
    ended: list[str] = []
    app = web.Application()
    app[END_SECONDS] = 0.01

    async def takes_no_byte() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("stalls")

    async def reads() -> None:
        ended.append("reads")

    endings: set[Ending] = {takes_no_byte, reads}
    app[STREAMS] = endings
    await end_streams(app)
    assert sorted(ended) == ["reads", "stalls"]


async def test_an_error_in_the_end_of_a_stream_is_told_after_all_have_ended() -> None:
    ended = asyncio.Event()
    app = web.Application()

    async def fails() -> None:
        raise RuntimeError("it breaks")

    async def reads() -> None:
        await asyncio.sleep(0)
        ended.set()

    endings: set[Ending] = {fails, reads}
    app[STREAMS] = endings
    with pytest.raises(RuntimeError, match="it breaks"):
        await end_streams(app)
    assert ended.is_set()
