"""The log of a run as a file: whole, told as cut, and its rest after a cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from controller.api.http.streams import end_streams
from fairlead.wire.frames import Frame, Stream, encode
from tests.support.waiting import LONG
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode
from tests.unit.web.conftest import Browser, submit

PRINTED = b"first line\n" + b"x" * 1000 + b"\nlast line\n"


class Downloaded:
    """A run that has printed PRINTED, and its file."""

    def __init__(self, browser: Browser, path: str, played: PlayedNode) -> None:
        self.browser = browser
        self.path = path
        self.played = played

    async def get(self, **headers: str) -> tuple[int, bytes, str | None]:
        """Return the status, the body and its place in the whole."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.browser.open(self.path, **named)
        return answer.status, await answer.read(), answer.headers.get("Content-Range")


@pytest.fixture
async def downloaded(admin: Browser, controller: Controller) -> Downloaded:
    run = await submit(admin)
    played = PlayedNode(controller)
    await played.runs("train")
    await played.prints("train", PRINTED)
    return Downloaded(admin, f"/dashboard/runs/{run['id']}/log.txt", played)


async def test_a_log_is_downloaded_as_a_file_and_never_as_a_page(
    admin: Browser, ada: Browser, controller: Controller
) -> None:
    run = await submit(admin)
    played = PlayedNode(controller)
    await played.runs("train")
    await played.prints("train", b"<script>alert(1)</script>\n")
    path = f"/dashboard/runs/{run['id']}/log.txt"
    answer = await admin.open(path)
    assert await answer.read() == b"<script>alert(1)</script>\n"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="train-')
    assert (await ada.open(path)).status == 404


async def test_a_download_that_is_cut_by_the_end_of_its_controller_is_not_at_its_end(
    downloaded: Downloaded,
    site: TestServer,
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = asyncio.Event()

    async def read(*_: Any) -> AsyncGenerator[bytes, None]:
        yield encode(Frame(0, 0, Stream.STDOUT, PRINTED))
        await goes_on.wait()

    monkeypatch.setattr(controller.logs, "read", read)
    answer = await downloaded.browser.open(downloaded.path)
    assert await answer.content.readexactly(len(PRINTED)) == PRINTED
    await end_streams(site.app)
    async with asyncio.timeout(LONG):
        # The end of a chunked body is told, and nothing told it (RFC 9112, 8).
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_browser_gets_the_rest_of_a_download_that_was_cut(downloaded: Downloaded) -> None:
    whole = await downloaded.browser.open(downloaded.path)
    assert (whole.status, await whole.read()) == (200, PRINTED)
    assert whole.headers["Accept-Ranges"] == "bytes"
    tag, size = whole.headers["ETag"], len(PRINTED)
    # The job prints on meanwhile.
    await downloaded.played.prints("train", b"more\n")
    grown = PRINTED + b"more\n"
    for first in (1, 11, size - 1, size + 4):
        place = f"bytes {first}-{size + 4}/{size + 5}"
        asked = {"Range": f"bytes={first}-"}
        assert await downloaded.get(**asked, If_Range=tag) == (206, grown[first:], place)
        assert await downloaded.get(**asked) == (206, grown[first:], place)
    status, _, place_of_none = await downloaded.get(Range=f"bytes={size + 5}-", If_Range=tag)
    assert (status, place_of_none) == (416, f"bytes */{size + 5}")


@pytest.mark.parametrize(
    "asked",
    [
        {"Range": "bytes=11-", "If_Range": '"of-another-attempt"'},
        {"Range": "bytes=11-20"},
        {"Range": "bytes=-5"},
        {"Range": "bytes=1-2,4-5"},
        {"Range": "lines=11-"},
        {"Range": f"bytes={'9' * 30}-"},
    ],
)
async def test_what_is_no_rest_of_this_log_is_answered_with_all_of_it(
    downloaded: Downloaded, asked: dict[str, str]
) -> None:
    assert await downloaded.get(**asked) == (200, PRINTED, None)
