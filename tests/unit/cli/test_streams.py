"""The command handles the streams that a shell gives it."""

from __future__ import annotations

import asyncio
import shlex
import sys

import pytest

from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import DEADLINE_SECONDS, PROGRAM, Fairlead, Result

HELLO = b"{type: task, name: hello, commands: [echo hi]}\n"


async def in_shell(environment: dict[str, str], rest: str, stdin: bytes = b"") -> Result:
    """`fairlead` with this behind it, as a shell reads it."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        f"exec {shlex.join([sys.executable, '-c', PROGRAM])} {rest}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"},
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return Result(process.returncode, out, err.decode())


@pytest.mark.parametrize("command", ["ps", "ps --json", "--help", "--version"])
async def test_a_full_disk_behind_the_output_is_named(
    environment: dict[str, str], command: str
) -> None:
    result = await in_shell(environment, f"{command} > /dev/full")
    assert result.err == "fairlead: the output cannot be written: No space left on device\n"
    assert result.status == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_closed_stream_is_like_dev_null(environment: dict[str, str], closed: str) -> None:
    result = await in_shell(environment, f"ps {closed}")
    shown = b"" if " >&-" in f" {closed}" else b"NAME"
    assert (result.status, result.out[:4], result.err) == (0, shown, "")


async def test_a_configuration_may_come_from_standard_input(
    environment: dict[str, str], controller: Controller
) -> None:
    result = await in_shell(environment, "apply -d -f -", HELLO)
    assert (result.status, result.out, result.err) == (0, b"hello\n", "")


async def test_an_error_of_standard_input_names_it_with_its_line(
    environment: dict[str, str],
) -> None:
    result = await in_shell(environment, "apply -f -", b"type: task\ncomands: [a]\n")
    assert result.err.startswith("fairlead: standard input:2: comands: is not a field")
    assert result.status == 2


@pytest.mark.parametrize("address", [(), ("--local", "/run/a.sock", "--host", "h")])
async def test_a_node_needs_one_address_and_the_options_are_named(
    start: Fairlead, address: tuple[str, ...]
) -> None:
    result = await (await start("node", "add", "x", *address)).ended()
    assert "give either --local SOCKET" in result.err
    assert "or --host HOST" in result.err
    assert result.status == 2
