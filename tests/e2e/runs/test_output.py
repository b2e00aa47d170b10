"""A job's bytes reach its user unchanged: all, once, in order, each on its own stream."""

from __future__ import annotations

import hashlib
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.wire.frames import Stream
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e


def _bytes_of(lab: RunLab, *args: str | Path) -> tuple[bytes, bytes]:
    with lab.controller.spawn_cli(*args) as command:
        try:
            output, errors = command.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
    assert command.returncode == 0, errors
    return output, errors


def test_both_streams_arrive_byte_for_byte(lab: RunLab) -> None:
    commands = [r"printf 'a\000\377\376b\r\n\033[31mno end'", r"printf 'e\200\n\nno end' >&2"]
    lab.submit("bytes", commands=commands)
    lab.wait_for("bytes", "done")
    assert _bytes_of(lab, "logs", "bytes") == (
        b"a\0\xff\xfeb\r\n\033[31mno end",
        b"e\x80\n\nno end",
    )


def test_megabytes_of_noise_arrive_as_they_were_made(lab: RunLab) -> None:
    make = "head -c 8000000 /dev/urandom > /tmp/noise"
    commands = [make, "sha256sum < /tmp/noise >&2", "cat /tmp/noise"]
    file = lab.write(commands=commands)
    output, errors = _bytes_of(lab, "apply", "-f", file, "-n", "noise")
    assert len(output) == 8_000_000
    assert hashlib.sha256(output).hexdigest().encode() in errors


def test_lines_of_a_slow_job_arrive_while_it_runs(lab: RunLab) -> None:
    lab.start("slow", commands=["echo early", UNTIL_ASKED, "echo late"])
    lab.wait_for_log("slow", b"early\n")
    assert lab.log("slow") == b"early\n"
    lab.let_go("slow")
    assert _bytes_of(lab, "logs", "-f", "slow")[0] == b"early\nlate\n"


def test_frames_of_the_websocket_have_no_gap_and_no_overlap(lab: RunLab) -> None:
    lab.submit("frames", commands=["seq 100000", "echo end >&2"])
    frames = lab.frames("frames", follow=True)
    assert all(a.end == b.offset for a, b in pairwise(frames))
    lines = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert b"".join(f.payload for f in frames if f.stream is Stream.STDOUT) == lines
    assert b"".join(f.payload for f in frames if f.stream is Stream.STDERR) == b"end\n"


def test_a_log_can_be_read_from_any_offset(lab: RunLab) -> None:
    lab.submit("offsets", commands=["printf 0123456789", "printf abcdef"])
    lab.wait_for("offsets", "done")
    assert _bytes_of(lab, "logs", "offsets", "--offset", "7")[0] == b"789abcdef"
    assert _bytes_of(lab, "logs", "offsets", "-f", "--offset", "12")[0] == b"cdef"
    assert _bytes_of(lab, "logs", "offsets", "--offset", "99")[0] == b""


def test_the_job_ends_at_its_log_quota_when_it_asked_for_that(lab: RunLab) -> None:
    lab.submit("chatty", commands=["yes"], log_quota="1MiB", fail_on_log_quota=True)
    run = lab.wait_for("chatty", "failed")
    attempt = run["jobs"][0]["attempts"][0]
    assert attempt["termination_reason"] == "log_quota_exceeded"
