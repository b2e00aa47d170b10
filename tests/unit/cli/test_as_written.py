"""A plain task's file is sent as it is written; what cannot be done so, is done as before."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from hypothesis import given
from hypothesis import strategies as st

from controller.api.app import make_app
from fairlead.cli.commands.runs import as_written
from fairlead.configuration.text import dstack, plain
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of

TASK = "type: task\nname: hello\ncommands: [echo hello]\n"
SENT = [
    TASK,
    "# of ada\n\ntype: task  \nenv:\n  A: b\ncommands:\n- a\n- |\n  env\n",
    "type: task\nenv:\n- A=1\n# - B\ncommands: [a]\n",
    "type: task\nenv: {A: b}\ncommands: [a]\n",
    "type: task\ncommands: [a]\nno_such_field: 1\n",
]
READ_HERE = [
    "type: service\ncommands: [a]\n",
    "{type: task, commands: [a]}\n",
    "type: task\nfiles: [a]\n",
    "type: task\nrepos: [a]\n",
    "type: task\nsecrets: [A]\n",
    "type: task\nregistry_auth: {username: a, password: b}\n",
    "type: task\nsweep: {file: a}\n",
    "type: task\ngroups: []\n",
    "type: task\nenv: [A]\n",
    "type: task\nenv:\n- A=1\n- B\n",
    "type: task\nenv:\n  - A\n",
    "type: task\n#" + "a" * as_written.MAX_BYTES,
    # Its first 16 KiB have fewer characters, and end between two of them.
    "type: task\n# " + "\u00e9" * 2000 + "\n" + "#" * as_written.MAX_BYTES,
]


def test_what_is_written_twice_for_speed_is_the_same() -> None:
    assert as_written.MAX_BYTES == plain.MAX_CHARACTERS
    assert as_written.OF_DSTACK == dstack.FILE_NAMES


@pytest.mark.parametrize("text", SENT)
def test_a_plain_file_is_sent(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.yml").write_text(text)
    assert as_written.plain_text(str(tmp_path / "task.yml")) == text


@pytest.mark.parametrize("text", READ_HERE)
def test_a_file_that_may_need_this_machine_is_not_sent(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.yml").write_text(text)
    assert as_written.plain_text(str(tmp_path / "task.yml")) is None


def test_what_is_no_text_in_a_file_of_ours_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a.dstack.yml").write_text(TASK)
    (tmp_path / "latin.yml").write_bytes(TASK.encode() + b"# \xe9\n")
    os.mkfifo(tmp_path / "pipe")  # it can be read once
    for name in ("a.dstack.yml", "latin.yml", "pipe", "none.yml", "."):
        assert as_written.plain_text(str(tmp_path / name)) is None


@given(
    st.dictionaries(st.sampled_from(["source", "name"]), st.none() | st.text(), max_size=2),
    st.lists(st.text(), max_size=2),
)
def test_what_is_sent_is_json(fields: dict[str, str | None], keys: list[str]) -> None:
    there = {name: text for name, text in fields.items() if text is not None}
    assert json.loads(as_written.encoded(fields, keys)) == {**there, "ssh_keys": keys}


class Requests:
    """What came, by path; `cut` the first answer, or answer none of a path with `unknown`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.cut = False
        self.unknown = ""

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        self.paths.append(request.path)
        self.keys.append((await request.json())["client_key"])
        if request.path == self.unknown:
            raise web.HTTPNotFound
        answer = await handler(request)
        if self.cut:
            self.cut = False
            assert request.transport is not None
            request.transport.close()
        return answer


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
async def server(controller: Controller, requests: Requests) -> AsyncIterator[TestServer]:
    server = TestServer(make_app(controller.service, first=[requests.middleware]))
    await server.start_server()
    yield server
    await server.close()


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "task.yml").write_text(TASK)
    return str(tmp_path / "task.yml")


def write(file: str, text: str) -> None:
    Path(file).write_text(text)


async def test_a_plain_task_is_one_request(
    start: Fairlead, requests: Requests, controller: Controller, task: str
) -> None:
    result = await of(start, "apply", task, "-d", "-n", "other", "--if-exists", "keep")
    assert (result.status, result.out, result.err) == (0, b"other\n", "")
    assert requests.paths == ["/v1/runs:yaml"]
    configuration = (await controller.service.runs.lookup.get("other")).run.configuration
    assert configuration == {"type": "task", "name": "hello", "commands": ["echo hello"]}
    kept = await of(start, "apply", task, "-d", "-n", "other", "--if-exists", "keep")
    assert (kept.status, kept.err.startswith("fairlead: kept other")) == (0, True)


async def test_an_answer_that_is_lost_makes_no_second_run(
    start: Fairlead, requests: Requests, controller: Controller, task: str
) -> None:
    requests.cut = True
    result = await of(start, "apply", task, "-d")
    assert (result.status, result.out) == (0, b"hello\n")
    assert requests.paths == ["/v1/runs:yaml", "/v1/runs"]
    assert requests.keys[0] == requests.keys[1]
    assert len(controller.pipeline.runs) == 1
    assert result.err.count("trying again") == 1


async def test_a_controller_that_knows_no_text_gets_the_content(
    start: Fairlead, requests: Requests, task: str
) -> None:
    requests.unknown = "/v1/runs:yaml"
    result = await of(start, "apply", task, "-d")
    assert (result.status, result.out, result.err) == (0, b"hello\n", "")
    assert requests.paths == ["/v1/runs:yaml", "/v1/runs"]


@pytest.mark.parametrize(
    ("line", "arguments", "status", "said"),
    [
        ("no_such_field: 1", (), 2, "task.yml:4: no_such_field: "),
        ("max_duration: 1x", (), 2, "task.yml:4: max_duration: "),
        ("fleets: [none]", (), 1, "fleets: there is no fleet none"),
        ("", ("--parent", "none"), 1, "parent: there is no run"),
    ],
)
async def test_what_the_controller_refuses_is_one_request(
    start: Fairlead,
    requests: Requests,
    task: str,
    line: str,
    arguments: Sequence[str],
    status: int,
    said: str,
) -> None:
    write(task, f"{TASK}{line}\n")
    result = await of(start, "apply", task, "-d", *arguments)
    assert (result.status, said in result.err, result.err.count("\n")) == (status, True, 1), result
    assert requests.paths == ["/v1/runs:yaml"]


async def test_a_name_that_is_taken_is_one_request(
    start: Fairlead, requests: Requests, task: str
) -> None:
    await of(start, "apply", task, "-d")
    result = await of(start, "apply", task, "-d")
    assert (result.status, "hello" in result.err) == (1, True)
    assert requests.paths == ["/v1/runs:yaml"] * 2


async def test_a_variable_that_only_the_controller_finds_is_filled_in_here(
    start: Fairlead, requests: Requests, controller: Controller, tmp_path: Path
) -> None:
    file = tmp_path / "task.yml"
    file.write_text("type: task\nname: hello\nenv:\n  [TAKEN]\ncommands: [a]\n")
    result = await of(start, "apply", str(file), "-d", TAKEN="from here")
    assert (result.status, result.out, result.err) == (0, b"hello\n", "")
    assert requests.paths == ["/v1/runs:yaml", "/v1/runs"]
    env = (await controller.service.runs.lookup.get("hello")).jobs[0].spec.env
    assert env["TAKEN"] == "from here"


async def test_a_run_that_is_replaced_is_awaited(
    start: Fairlead, requests: Requests, controller: Controller, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", task, "-d")
    await node.runs("hello")
    command = await start("apply", task, "-d", "--if-exists", "replace")
    await command.hears("is being stopped; waiting for its end")
    await node.ends("hello", 0)
    result = await command.ended()
    assert (result.status, result.out) == (0, b"hello\n")
    assert requests.paths == ["/v1/runs:yaml", "/v1/runs:yaml", "/v1/runs", "/v1/runs"]
    assert len(set(requests.keys[1:])) == 1
