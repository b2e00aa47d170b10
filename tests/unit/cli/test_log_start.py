"""The place in a log at which `logs` begins."""

from __future__ import annotations

from fairlead.cli.log_start import Start
from fairlead.wire.frames import Frame, Stream
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of


async def test_a_log_begins_with_its_last_lines_or_at_a_moment_with_times(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    await node.runs("hello")
    await node.prints("hello", b"one\ntwo\nthr")
    await node.prints("hello", b"ee\nfour\n")
    for tail, shown in (("2", b"three\nfour\n"), ("0", b""), ("9", b"one\ntwo\nthree\nfour\n")):
        assert (await of(start, "logs", "hello", "--tail", tail)).out == shown
    assert (await of(start, "logs", "hello", "--since", "1970-01-02")).out == b""
    assert (await of(start, "logs", "hello", "--since", "1969-12-31")).out.count(b"\n") == 4
    stamped = await of(start, "logs", "hello", "-t", "--tail", "1")
    assert stamped.out == b"1970-01-01T00:00:00.000Z four\n"
    for wrong in (("--tail", "-1"), ("--since", "noon"), ("--tail", "1", "--offset", "3")):
        assert (await of(start, "logs", "hello", *wrong)).status == 2


def test_the_last_lines_begin_after_so_many_ends_of_lines() -> None:
    frames = [Frame(0, 1, Stream.STDOUT, b"a\nb\n"), Frame(4, 2, Stream.STDOUT, b"c")]
    assert [Start(tail=tail, since=None).offset(frames) for tail in (0, 1, 2, 3, 4)] == [
        5,
        4,
        2,
        0,
        0,
    ]
