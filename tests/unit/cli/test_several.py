"""Runs of several jobs: whose output is whose, and whose end is the run's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from controller.api.views import run_view
from controller.clock import SystemClock
from controller.lifecycle.model import RetryPolicy
from controller.lifecycle.reports import Preempted
from controller.service.jobs.logs import KeptLogs
from fairlead.cli.output import LineWriter
from fairlead.model.reasons import Reason
from fairlead.summaries.progress import exit_status
from fairlead.wire.frames import Frame, Stream
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Command, Fairlead, PlayedNode
from tests.unit.lifecycle.play import Play

PAIR = "type: task\nname: pair\nnodes: 2\ngang: false\nshare_nodes: true\ncommands: [work]\n"


@pytest.fixture
def pair(tmp_path: Path) -> str:
    path = tmp_path / "pair.yml"
    path.write_text(PAIR)
    return str(path)


async def both_run(start: Fairlead, node: PlayedNode, file: str) -> Command:
    """Submit the pair, and return its command once both jobs run."""
    command = await start("apply", "-f", file)
    await command.hears("submitted pair")
    for job in (0, 1):
        await node.runs("pair", job)
    return command


async def test_lines_of_several_jobs_stand_behind_their_jobs_names(
    start: Fairlead, node: PlayedNode, pair: str
) -> None:
    command = await both_run(start, node, pair)
    for job in (0, 1):
        await node.prints("pair", f"first of {job}\nno end".encode(), job=job)
        await node.prints("pair", f" of {job}".encode(), job=job)
        await node.prints("pair", b"oops\n", Stream.STDERR, job=job)
    for job in (0, 1):
        await node.ends("pair", 0, job)
    result = await command.ended()
    assert sorted(result.out.decode().splitlines()) == [
        "main/0 | first of 0",
        "main/0 | no end of 0",
        "main/1 | first of 1",
        "main/1 | no end of 1",
    ]
    assert "main/1 | oops\n" in result.err
    assert result.status == 0


async def test_the_exit_code_of_the_job_that_ended_the_run_is_the_commands(
    start: Fairlead, node: PlayedNode, pair: str
) -> None:
    command = await both_run(start, node, pair)
    await node.ends("pair", 9, 1)
    await node.ends("pair", 3, 0)
    result = await command.ended()
    assert "main/1: " in result.err
    assert result.status == 9


async def test_a_limit_of_the_run_that_ended_it_is_told(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file = tmp_path / "limited.yml"
    file.write_text(f"{PAIR}max_failed_attempts: 0\nretry: true\n")
    command = await both_run(start, node, str(file))
    await node.ends("pair", 9, 1)
    await node.ends("pair", 143, 0)
    result = await command.ended()
    assert "pair: failed: 1 attempt failed; max_failed_attempts is 0" in result.err
    assert result.status == 9


async def test_a_failure_that_a_run_tolerated_is_not_why_it_ended(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file = tmp_path / "tolerant.yml"
    file.write_text(f"{PAIR}max_failed_jobs: 1\n")
    command = await both_run(start, node, str(file))
    await node.ends("pair", 9, 1)
    await node.ends("pair", 0, 0)
    result = await command.ended()
    assert "pair: done: All jobs are done." in result.err
    assert "exited with code 9" not in result.err
    assert result.status == 0
    listed = await (await start("ps", "--all")).ended()
    assert b"jobs run" not in listed.out


@pytest.mark.parametrize(
    ("run_ended_by", "its_code"),
    [(Reason.MAX_DURATION_EXCEEDED, 143), (Reason.PREEMPTED, 137)],
)
def test_nor_is_its_exit_code_the_commands(run_ended_by: Reason, its_code: int) -> None:
    failed = Reason.CONTAINER_EXITED_WITH_ERROR
    never = RetryPolicy(on_events=frozenset())
    play = Play(jobs=2, max_failed_jobs=1, max_duration=100.0, retry=never)
    play.to_running(0).to_running(1).send(play.exited(1, failed, 9)).clean(1)
    if run_ended_by is Reason.PREEMPTED:
        attempt_id = play.attempt(0).id
        play.wait(1).send(Preempted(run_id=play.run_id, attempt_id=attempt_id, message="for b"))
    else:
        play.wait(100)
    play.send(play.exited(0, failed, its_code)).clean(0)
    assert play.attempt(0).reason is run_ended_by
    assert exit_status(run_view(play.state, {})) == its_code


async def test_logs_show_all_jobs_or_the_one_that_is_named(
    start: Fairlead, node: PlayedNode, pair: str
) -> None:
    await (await start("apply", "-f", pair, "-d")).ended()
    for job in (0, 1):
        await node.runs("pair", job)
        await node.prints("pair", f"of {job}\n".encode(), job=job)
    everything = await (await start("logs", "pair")).ended()
    assert everything.out == b"main/0 | of 0\nmain/1 | of 1\n"
    for key in (("main/1",), ("--job", "1")):
        assert (await (await start("logs", "pair", *key)).ended()).out == b"of 1\n"
    unclear = await (await start("logs", "pair", "--offset", "1")).ended()
    assert (unclear.status, "which job's?" in unclear.err) == (2, True)


async def test_followed_logs_of_several_jobs_end_with_the_last_of_them(
    start: Fairlead, node: PlayedNode, pair: str
) -> None:
    await (await start("apply", "-f", pair, "-d")).ended()
    for job in (0, 1):
        await node.runs("pair", job)
    command = await start("logs", "-f", "pair")
    for job in (0, 1):
        await node.prints("pair", f"of {job}\n".encode(), job=job)
        await node.ends("pair", 0, job)
    result = await command.ended()
    assert sorted(result.out.splitlines()) == [b"main/0 | of 0", b"main/1 | of 1"]
    assert result.status == 0


async def test_a_log_that_was_removed_is_told_and_ends_no_other(
    start: Fairlead, node: PlayedNode, pair: str, controller: Controller
) -> None:
    await (await start("apply", "-f", pair, "-d")).ended()
    attempts = [await node.runs("pair", job) for job in (0, 1)]
    for job in (0, 1):
        await node.prints("pair", f"of {job}\n".encode(), job=job)
        await node.ends("pair", 0, job)
    controller.service.jobs.kept_logs = KeptLogs(controller.logs, SystemClock(), kept_for=0.0)
    await controller.logs.sweep(needed=attempts[1:], written_before=math.inf)
    gone = "the log of job main/0 of run pair, attempt 0, was removed"
    for options in ((), ("-f",)):
        several = await (await start("logs", "pair", *options)).ended()
        assert (several.status, several.out) == (0, b"main/1 | of 1\n")
        assert several.err.count(gone) == 1
        alone = await (await start("logs", "pair", "main/0", *options)).ended()
        assert (alone.status, alone.out) == (1, b"")
        assert gone in alone.err
        other = await (await start("logs", "pair", "main/1", *options)).ended()
        assert (other.status, other.out, other.err) == (0, b"of 1\n", "")


async def test_a_log_that_never_was_is_empty(
    start: Fairlead, pair: str, controller: Controller
) -> None:
    controller.service.jobs.kept_logs = KeptLogs(controller.logs, SystemClock(), kept_for=0.0)
    await (await start("apply", "-f", pair, "-d")).ended()
    await (await start("stop", "pair", "--abort")).ended()
    result = await (await start("logs", "pair")).ended()
    assert (result.status, result.out, result.err) == (0, b"", "")


def test_a_line_in_pieces_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    writer = LineWriter("main/3")
    for offset, part in enumerate((b"a", b"b\nc", b"\n\n", b"d")):
        writer.write(Frame(offset, 1, Stream.STDOUT, part))
    writer.close()
    assert capfd.readouterr().out == "main/3 | ab\nmain/3 | c\nmain/3 | \nmain/3 | d\n"


async def test_events_name_jobs_and_are_followed_to_the_end(start: Fairlead, pair: str) -> None:
    await (await start("apply", "-f", pair, "-d")).ended()
    shown = (await (await start("events", "pair")).ended()).out.decode()
    assert "attempt main/1 #0" in shown
    following = await start("events", "-f", "pair")
    await (await start("stop", "pair")).ended()
    followed = await following.ended()
    assert b"attempt main/1 #0" in followed.out
    assert b"terminating" in followed.out
    assert followed.status == 0
