"""A job may have a terminal, and no job ever waits for somebody who types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.frames import Stream
from tests.unit.runner.harness import (
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    run_job,
    until_output,
)


async def said(
    folder: Path, *commands: str, stream: Stream | None = None, **fields: Any
) -> tuple[str, str | None]:
    """Output, of all streams or of one, and reason."""
    async with a_runner(folder) as (_, client):
        record = await run_job(client, a_job(*commands, **fields))
        return payload(await followed(client), stream).decode(), record.reason


TESTS = ("test -t 1 && echo out", "test -t 2 && echo err", "test -t 0 && echo in || true")


async def test_a_job_has_no_terminal_unless_it_asks_for_one(tmp_path: Path) -> None:
    look = [f"{test} || true" for test in TESTS] + ["(: < /dev/tty) 2>/dev/null || echo none"]
    assert await said(tmp_path, *look) == ("none\n", "done_by_runner")


async def test_a_job_that_asks_for_a_terminal_writes_to_one(tmp_path: Path) -> None:
    output, reason = await said(tmp_path, *TESTS, "stty size < /dev/tty", tty=True)
    assert (output, reason) == ("out\nerr\n24 80\n", "done_by_runner")


async def test_lines_end_as_the_program_wrote_them(tmp_path: Path) -> None:
    output, _ = await said(tmp_path, "printf 'a\\nb\\r\\nc'", tty=True)
    assert output == "a\nb\r\nc"


@pytest.mark.parametrize("tty", [False, True])
async def test_an_interactive_shell_ends_instead_of_waiting(tmp_path: Path, tty: bool) -> None:
    # Without a terminal, what bash complains about is a stream of its own and may come last.
    output, reason = await said(
        tmp_path, "bash --norc -i", "echo after", stream=Stream.STDOUT, tty=tty
    )
    assert reason == "done_by_runner"
    assert output.endswith("after\n")


@pytest.mark.parametrize("tty", [False, True])
async def test_an_interactive_shell_runs_what_it_is_told(tmp_path: Path, tty: bool) -> None:
    output, reason = await said(
        tmp_path,
        "bash --norc -ic 'sleep 0.01 & wait; echo $((6*7))'",
        "echo after",
        stream=Stream.STDOUT,
        tty=tty,
    )
    assert reason == "done_by_runner"
    assert "42\n" in output
    assert output.endswith("after\n")


@pytest.mark.parametrize("tty", [False, True])
async def test_reading_standard_input_finds_its_end(tmp_path: Path, tty: bool) -> None:
    output, reason = await said(tmp_path, "read x || echo nothing", "cat", "echo on", tty=tty)
    assert (output, reason) == ("nothing\non\n", "done_by_runner")


async def test_reading_the_terminal_finds_its_end(tmp_path: Path) -> None:
    commands = ("read x < /dev/tty || echo nothing", "cat /dev/tty", "echo on")
    output, reason = await said(tmp_path, *commands, tty=True)
    assert (output, reason) == ("nothing\non\n", "done_by_runner")


async def test_asking_for_a_password_finds_the_end_of_input(tmp_path: Path) -> None:
    """It throws away what was typed ahead, the end of input too."""
    ask = "import getpass; getpass.getpass()"
    output, reason = await said(tmp_path, f"{sys.executable} -c '{ask}' || echo nobody", tty=True)
    assert reason == "done_by_runner"
    assert output.endswith("EOFError\nnobody\n")


async def test_a_shell_with_job_control_owns_its_terminal(tmp_path: Path) -> None:
    """A background group that looks at the terminal would be stopped forever otherwise."""
    output, reason = await said(
        tmp_path,
        "bash --norc -ic 'cat /dev/tty; stty -a > /dev/null < /dev/tty; echo own'",
        tty=True,
    )
    assert reason == "done_by_runner"
    assert "own\n" in output


async def test_the_last_line_of_a_failure_is_told(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        record = await run_job(client, a_job("echo what went wrong >&2; exit 3", tty=True))
    assert record.message == "exited with code 3: what went wrong"


async def test_a_large_output_arrives_whole_through_a_terminal(tmp_path: Path) -> None:
    output, _ = await said(tmp_path, "seq 20000", tty=True)
    assert output == "".join(f"{n}\n" for n in range(1, 20001))


async def test_a_terminal_is_one_stream(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job("echo a; echo b >&2", tty=True))
        frames = await followed(client)
    assert payload(frames, Stream.STDOUT) == b"a\nb\n"


async def test_stopping_reaches_a_job_at_its_terminal(tmp_path: Path) -> None:
    loop = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job(loop, tty=True))
        await client.run()
        await until_output(client, b"ready\n")
        await client.stop(grace=3600)
        record = await exit_of(client)
        assert payload(await followed(client)).endswith(b"bye\n")
    assert (record.reason, record.exit_code) == ("container_exited_with_error", 5)
