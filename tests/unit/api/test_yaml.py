"""A task that is submitted by its YAML is the run that its content would have made."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

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
