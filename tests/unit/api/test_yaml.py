"""A task that is submitted by its YAML is the run that its content would have made."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.service.runs import submission_stages
from fairlead.configuration.text.plain import plain
from tests.unit.api.asking import error_of
from tests.unit.api.conftest import Controller

TEXT = "type: task\nname: hello\nenv: {A: 1.10}\ncommands: [echo hello]\n"
CONTENT = {"type": "task", "name": "hello", "env": {"A": "1.10"}, "commands": ["echo hello"]}


async def test_the_text_and_its_content_make_the_same_run(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    async with api.post("/v1/runs:yaml", json={"source": TEXT, "client_key": "k"}) as answer:
        assert answer.status == 201, await answer.text()
        made = await answer.json()
    # A client whose answer was lost, and that reads the file itself then.
    async with api.post("/v1/runs", json={"configuration": CONTENT, "client_key": "k"}) as answer:
        assert (answer.status, (await answer.json())["id"]) == (201, made["id"])
    state = await controller.service.runs.lookup.get("hello")
    assert state.run.configuration == CONTENT


async def test_it_takes_what_a_submission_takes(api: TestClient[Any, Any]) -> None:
    given = {"source": TEXT, "name": "other", "if_exists": "keep"}
    async with api.post("/v1/runs:yaml", json=given) as answer:
        assert (answer.status, (await answer.json())["name"]) == (201, "other")
    async with api.post("/v1/runs:yaml", json=given) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("source", "code", "field"),
    [
        ("type: [\n", "invalid_yaml", "source"),
        ("type: task\nfiles: [a]\ncommands: [a]\n", "not_plain", "source"),
        ("type: task\ncomands: [a]\n", "invalid_configuration", "comands"),
        ("#" * 20_000, "invalid", "source"),
    ],
)
async def test_a_refusal_has_a_code_and_a_field(
    api: TestClient[Any, Any], source: str, code: str, field: str
) -> None:
    async with api.post("/v1/runs:yaml", json={"source": source}) as answer:
        assert await error_of(answer) == (400, code, field)


class Reading:
    """Reads as `plain` does, once it may; knows how many read at the same time."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.began = threading.Event()
        self.texts: list[str] = []

    def read(self, text: str) -> dict[str, object]:
        self.texts.append(text)
        self.began.set()
        assert self.may.wait(60)
        return plain(text)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    reading = Reading()
    monkeypatch.setattr(submission_stages, "plain", reading.read)
    monkeypatch.setattr(submission_stages, "TURN_SECONDS", 0.05)
    return reading


async def test_texts_are_read_one_at_a_time(api: TestClient[Any, Any], reading: Reading) -> None:
    given = {"source": TEXT, "if_exists": "keep"}
    first = asyncio.create_task(api.post("/v1/runs:yaml", json=given))
    await asyncio.to_thread(reading.began.wait, 60)
    # It waits as long as it may, and is refused: the first text is still being read.
    async with api.post("/v1/runs:yaml", json=given) as answer:
        assert await error_of(answer) == (503, "unavailable", None)
    assert len(reading.texts) == 1
    reading.may.set()
    async with await first as answer:
        assert answer.status == 201
    async with api.post("/v1/runs:yaml", json=given) as answer:
        assert answer.status == 200
    assert len(reading.texts) == 2
