"""Windows and searches of a log by the API; `tests/unit/logs/test_windows.py` has their rules."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import WSServerHandshakeError
from aiohttp.test_utils import TestClient

from controller.logs.parts import LogBucket
from controller.outputs.bucket import Bucket, BucketError
from tests.unit.api.asking import error_of, submit, write_log
from tests.unit.api.conftest import USER_TOKEN, Controller

WINDOW, SEARCH = "/v1/runs/hello/logs/window", "/v1/runs/hello/logs/search"
LINES = [b"line %02d\n" % number for number in range(20)]


async def logged(api: TestClient[Any, Any], controller: Controller) -> None:
    run = await submit(api, name="hello")
    await write_log(controller, run["jobs"][0]["attempts"][0]["id"], *LINES)


async def asked(api: TestClient[Any, Any], path: str, **query: object) -> dict[str, Any]:
    async with api.get(path, params={key: str(one) for key, one in query.items()}) as answer:
        assert answer.status == 200, await answer.text()
        body: dict[str, Any] = await answer.json()
        return body


async def test_without_a_place_a_window_shows_the_end(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await logged(api, controller)
    window = await asked(api, WINDOW, size=16)
    assert [row["text"] for row in window["rows"]] == ["line 18", "line 19"]
    assert (window["start"], window["end"], window["log_end"]) == (144, 160, 160)
    assert window["first_line"] == 19
    assert window["rows"][0]["stream"] == "stdout"


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ({"offset": 8}, "line 01"),
        ({"before": 16}, "line 00"),
        ({"near": 20}, "line 02"),
        ({"at": "1970-01-01T00:00:00Z"}, "line 00"),
    ],
)
async def test_a_window_is_shown_from_any_place(
    api: TestClient[Any, Any], controller: Controller, query: dict[str, object], first: str
) -> None:
    await logged(api, controller)
    window = await asked(api, WINDOW, size=16, **query)
    assert window["rows"][0]["text"] == first


async def test_a_search_gives_the_places_of_the_matches(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await logged(api, controller)
    found = await asked(api, SEARCH, text="LINE 1", limit=3)
    assert [match["text"] for match in found["matches"]] == ["line 10", "line 11", "line 12"]
    assert (found["searched_to"], found["log_end"]) == (104, 160)
    assert not (await asked(api, SEARCH, text="LINE 1", exact_case=True))["matches"]
    found = await asked(api, SEARCH, text="LINE .[05]$", regex=True)
    assert [match["text"] for match in found["matches"]] == [
        f"line {at:02}" for at in (0, 5, 10, 15)
    ]


async def test_a_search_for_what_is_no_pattern_is_refused(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    async with api.get(SEARCH, params={"text": "a(b", "regex": "true"}) as answer:
        status, _, field = await error_of(answer)
    assert (status, field) == (400, "text")


async def test_a_log_that_has_not_begun_is_empty(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    assert (await asked(api, WINDOW))["rows"] == []
    assert (await asked(api, SEARCH, text="x")) == {"matches": [], "searched_to": 0, "log_end": 0}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"offset": "1", "near": "2"}, "near"),
        ({"at": "yesterday"}, "at"),
        ({"size": "0"}, "size"),
        ({"before": "-1"}, "before"),
    ],
)
async def test_a_wrong_place_is_refused(
    api: TestClient[Any, Any], query: dict[str, str], field: str
) -> None:
    await submit(api, name="hello")
    async with api.get(WINDOW, params=query) as answer:
        status, _, named = await error_of(answer)
    assert (status, named) == (400, field)


@pytest.mark.parametrize("path", [WINDOW, f"{SEARCH}?text=x"])
async def test_other_users_see_nothing_of_a_log(api: TestClient[Any, Any], path: str) -> None:
    await submit(api, name="hello")
    async with api.get(path, headers={"Authorization": f"Bearer {USER_TOKEN}"}) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("path", ["logs", "logs/window", "logs/search?text=x"])
async def test_a_log_whose_bucket_is_away_is_refused_before_the_answer_begins(
    api: TestClient[Any, Any], controller: Controller, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BucketError("s3://away: connection refused")

    monkeypatch.setattr(LogBucket, "parts", away)
    await submit(api, name="hello")
    bucket = LogBucket(Bucket.parse("s3://away"), "an-installation")
    monkeypatch.setattr(controller.logs._copies, "_bucket", bucket)
    async with api.get(f"/v1/runs/hello/{path}") as answer:
        assert await error_of(answer) == (503, "logs_unreachable", None)
        assert answer.headers["Retry-After"] == "10"
        assert "the bucket of logs does not answer: s3://away" in await answer.text()
    with pytest.raises(WSServerHandshakeError) as refused:
        await api.ws_connect("/v1/runs/hello/logs/ws")
    assert refused.value.status == 503
    assert refused.value.headers is not None
    assert refused.value.headers["Retry-After"] == "10"
