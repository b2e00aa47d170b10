from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from controller.api.app import make_app
from fairlead.model.statuses import RunStatus
from fairlead.wire.frames import Stream
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode, Terminal
from tests.unit.cli.output import of

EVERY_BYTE = bytes(range(256)) * 3


async def test_output_arrives_byte_for_byte_on_the_stream_it_was_written_to(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("queued: no node is connected")
    await node.runs("hello")
    await command.hears("fairlead: running on n1\n")
    await node.prints("hello", EVERY_BYTE)
    await node.prints("hello", b"to stderr\n", Stream.STDERR)
    await node.prints("hello", b"no newline at the end")
    await node.ends("hello", 0)
    result = await command.ended()
    assert result.out == EVERY_BYTE + b"no newline at the end"
    assert "to stderr\n" in result.err
    assert result.err.endswith("fairlead: hello: done: All jobs are done.\n")
    assert result.status == 0


def _service(tmp_path: Path, command: str) -> str:
    file = tmp_path / "web.yaml"
    file.write_text(f"type: service\nname: web\nimage: busybox\nport: 80\ncommands: [{command}]\n")
    return str(file)


async def test_a_changed_service_is_followed_until_its_rollout_ends(
    start: Fairlead, tmp_path: Path
) -> None:
    assert (await of(start, "apply", "-d", "-f", _service(tmp_path, "serve"))).status == 0
    followed = await start("apply", "-f", _service(tmp_path, "serve --fast"))
    await followed.hears("web: deployment 1 is being rolled out")
    await followed.hears("web: 0 of 1 replicas of deployment 1 are ready")
    assert (await of(start, "stop", "web")).status == 0
    result = await followed.ended()
    assert (result.status, "deployment 1 was not rolled out" in result.err) == (1, True)


async def test_an_unchanged_service_is_answered_with_a_document(
    start: Fairlead, tmp_path: Path
) -> None:
    await of(start, "apply", "-d", "-f", _service(tmp_path, "serve"))
    result = await of(start, "apply", "-d", "-f", _service(tmp_path, "serve"), "--json")
    document = json.loads(result.out)
    assert (result.status, document["changes"], document["service"]["name"]) == (0, [], "web")


async def test_a_detached_change_of_a_service_is_not_said_to_be_done(
    start: Fairlead, tmp_path: Path
) -> None:
    await of(start, "apply", "-d", "-f", _service(tmp_path, "serve"))
    result = await of(start, "apply", "-d", "-f", _service(tmp_path, "serve --fast"))
    assert result.status == 0
    assert "deployment 1 is being rolled out" in result.err
    assert "is rolled out" not in result.err


async def test_the_document_of_a_followed_run_is_all_that_stdout_has(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    command = await start("apply", "-f", task, "--json")
    await command.hears("submitted hello")
    await node.runs("hello")
    await node.prints("hello", b"a line of the job\n")
    await node.ends("hello", 0)
    result = await command.ended()
    assert json.loads(result.out)["status"] == "done"
    assert "a line of the job\n" in result.err


async def test_the_jobs_exit_code_is_the_commands(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("submitted hello")
    await node.runs("hello")
    await node.ends("hello", 7)
    assert (await command.ended()).status == 7


async def test_a_stopped_run_is_a_failure(
    start: Fairlead, controller: Controller, task: str
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("submitted hello")
    assert (await (await start("stop", "hello")).ended()).status == 0
    result = await command.ended()
    assert result.status == 1
    assert "hello: terminated: stopped by admin" in result.err


@pytest.fixture
def retried(tmp_path: Path) -> str:
    """The file of a run named `again`, whose job is tried twice."""
    path = tmp_path / "retried.yml"
    path.write_text(
        "type: task\nname: again\ncommands: [work]\nretry: {on_events: [error], max_failures: 1}\n"
    )
    return str(path)


async def test_the_output_of_every_attempt_of_a_retried_job_arrives(
    start: Fairlead, node: PlayedNode, retried: str
) -> None:
    command = await start("apply", "-f", retried)
    await command.hears("submitted again")
    await node.runs("again")
    await node.prints("again", b"first\n")
    await node.ends("again", 1)
    await node.runs("again")
    await node.prints("again", b"second\n")
    await node.ends("again", 0)
    result = await command.ended()
    assert (result.status, result.out) == (0, b"first\nsecond\n")


async def test_an_attempt_that_failed_and_comes_back_is_told_after_its_output(
    start: Fairlead, node: PlayedNode, retried: str
) -> None:
    command = await start("apply", "-f", retried)
    await command.hears("submitted again")
    await node.runs("again")
    await node.prints("again", b"first\n")
    await node.ends("again", 3)
    assert await command.reads(6) == b"first\n"
    await command.hears("attempt 0 failed: the job ended with exit code 3; it ")
    await node.runs("again")
    await node.ends("again", 4)
    result = await command.ended()
    assert result.status == 4
    assert result.err.count("tried again") == 1
    assert "attempt 1 failed" not in result.err


async def test_attach_begins_with_the_last_lines_of_the_present_attempt(
    start: Fairlead, node: PlayedNode, retried: str
) -> None:
    await of(start, "apply", "-d", retried)
    await node.runs("again")
    await node.prints("again", b"first\n")
    await node.ends("again", 1)
    await node.runs("again")
    await node.prints("again", b"a\nb\nc\n")
    command = await start("attach", "again", "--tail", "2")
    assert await command.reads(4) == b"b\nc\n"
    await node.prints("again", b"d\n")
    await node.ends("again", 0)
    result = await command.ended()
    assert (result.status, result.out) == (0, b"d\n")
    assert "tried again" not in result.err
    assert (await of(start, "attach", "again", "--tail", "-1")).status == 2


async def test_what_jobs_get_is_told_once_however_many_get_it_later(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    path = tmp_path / "wide.yml"
    path.write_text(
        "type: task\nname: wide\nnodes: 3\ngang: false\ncommands: [work]\n"
        "resources: {memory: 1GB..}\n"
    )
    command = await start("apply", "-f", str(path))
    await command.hears("submitted wide")
    for job in range(3):
        await node.runs("wide", job)
        await node.prints("wide", b"here\n", job=job)
        await command.prints(b"here\n")
    for job in range(3):
        await node.ends("wide", 0, job)
    result = await command.ended()
    assert result.status == 0
    assert result.err.count("asked:") == 1


async def test_a_lost_controller_costs_no_byte_and_doubles_none(
    start: Fairlead, controller: Controller, node: PlayedNode, task: str, server: TestServer
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("submitted hello")
    await node.runs("hello")
    await node.prints("hello", b"before ")
    assert await command.reads(7) == b"before "
    port = server.port
    assert port is not None
    await server.close()
    await node.prints("hello", b"while away ")
    await command.hears("trying again")
    again = TestServer(make_app(controller.service), port=port)
    await again.start_server()
    await node.prints("hello", b"after")
    await node.ends("hello", 0)
    result = await command.ended()
    await again.close()
    assert (result.status, result.out) == (0, b"while away after")


async def test_the_file_may_stand_without_its_option(start: Fairlead, task: str) -> None:
    assert (await of(start, "apply", task, "-d")).out == b"hello\n"
    assert b"main/0" in (await of(start, "plan", task, "-n", "other")).out
    for wrong in (("apply", task, task), ("apply", task, "-f", task), ("apply",)):
        assert (await of(start, *wrong)).status == 2
    unknown = await of(start, "apply", "--detatch", task)
    assert (unknown.status, "--detatch" in unknown.err) == (2, True)
    standard_input = await of(start, "apply", "-d", "-")
    assert "standard input: is empty; a configuration is a mapping" in standard_input.err


async def test_an_interrupt_in_a_pipe_detaches_and_the_run_goes_on(
    start: Fairlead, controller: Controller, node: PlayedNode, task: str
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("submitted hello")
    await node.runs("hello")
    await command.hears("running on n1")
    command.interrupt()
    result = await command.ended()
    assert result.status == 130
    assert "fairlead logs -f hello" in result.err
    assert (await controller.service.runs.lookup.get("hello")).run.status is RunStatus.RUNNING


async def test_detached_it_prints_the_runs_name_alone(start: Fairlead, task: str) -> None:
    result = await (await start("apply", "-f", task, "-d", "-n", "other")).ended()
    assert (result.status, result.out, result.err) == (0, b"other\n", "")


async def test_a_taken_name_is_refused_with_the_run_that_has_it(start: Fairlead, task: str) -> None:
    await (await start("apply", "-f", task, "-d")).ended()
    result = await (await start("apply", "-f", task, "-d")).ended()
    assert result.status == 1
    assert result.err.startswith("fairlead: name: a live run is named hello already")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("type: task\ncommands: [a]\ncolour: red\n", "wrong.yml:3: colour: "),
        (
            "type: task\ncommands: [a]\nresources:\n  memory: lots\n",
            "wrong.yml:4: resources.memory",
        ),
        ("type: [\n", "wrong.yml:2: "),
        ('type: task\ncommands: ["\\ud800"]\n', "wrong.yml:2: commands[0]: contains half of a"),
        ("just text\n", "wrong.yml:1: "),
    ],
)
async def test_a_wrong_file_is_one_sentence_with_its_line(
    start: Fairlead, tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(content)
    result = await (await start("apply", "-f", str(path))).ended()
    assert (result.status, result.out) == (2, b"")
    assert expected in result.err
    assert result.err.count("\n") == 1


async def test_env_comes_from_the_option_and_from_here(
    start: Fairlead, controller: Controller, task: str
) -> None:
    arguments = ("apply", "-f", task, "-d", "-e", "GIVEN=a=b", "-e", "TAKEN")
    result = await (await start(*arguments, TAKEN="from here")).ended()
    assert result.status == 0
    state = await controller.service.runs.lookup.get("hello")
    given = {"GIVEN": "a=b", "TAKEN": "from here"}
    assert state.jobs[0].spec.env == {"UV_SYSTEM_PYTHON": "1", **given}


async def test_a_variable_that_is_not_set_is_named(start: Fairlead, task: str) -> None:
    result = await (await start("apply", "-f", task, "-e", "NOT_SET_HERE")).ended()
    assert result.status == 2
    assert "NOT_SET_HERE" in result.err


async def test_several_commands_may_follow_one_run(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    command = await start("apply", "-f", task)
    await command.hears("submitted hello")
    await node.runs("hello")
    await node.prints("hello", b"same\n")
    others = await asyncio.gather(*(start("logs", "-f", "hello") for _ in range(2)))
    for other in others:
        assert await other.reads(5) == b"same\n"
    await node.ends("hello", 0)
    assert [(await one.ended()).status for one in (command, *others)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "expected"), [(b"y\n", RunStatus.TERMINATING), (b"\n", RunStatus.RUNNING)]
)
async def test_an_interrupt_at_a_terminal_asks_whether_to_stop(
    start_on_terminal: Callable[..., Awaitable[Terminal]],
    controller: Controller,
    node: PlayedNode,
    task: str,
    answer: bytes,
    expected: RunStatus,
) -> None:
    terminal = await start_on_terminal("apply", "-f", task)
    await terminal.shows(b"queued: no node is connected")
    await node.runs("hello")
    await terminal.shows(b"running on n1")
    terminal.types(b"\x03")
    await terminal.shows(b"Stop hello? [y/N]")
    terminal.types(answer)
    assert await terminal.ended() == 130
    assert (await controller.service.runs.lookup.get("hello")).run.status is expected


async def test_a_file_of_dstack_is_known_by_its_name_and_told_in_one_line(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "train.dstack.yml"
    file.write_text("type: task\nname: train\nimage: busybox\ncommands: [a]\n")
    planned, applied = [
        await of(start, *one, "-f", str(file)) for one in (["plan"], ["apply", "-d"])
    ]
    line = (
        "fairlead: read as a file of dstack: waits while no node is free, where dstack fails at"
        " once; asks for 100GB of disk, as in dstack\n"
    )
    assert planned.err.startswith(line)
    assert applied.err.startswith(line)
    found = json.loads((await of(start, "inspect", "train", "--json")).out)
    assert found["priority"] == 0
    assert found["configuration"]["dialect"] == "dstack"
