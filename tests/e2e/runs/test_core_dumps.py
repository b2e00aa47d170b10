"""The core dump of a crashed job, by the node's own kernel: kept, or told why it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e

PATTERN = Path("/proc/sys/kernel/core_pattern")
SIGSEGV = 139


@pytest.fixture
def core_pattern() -> Iterator[Callable[[str], object]]:
    """Sets the kernel's setting for the time of a test; it holds for all of this machine."""
    before = PATTERN.read_text()
    yield PATTERN.write_text
    PATTERN.write_text(before)


def listed(lab: RunLab, name: str) -> dict[str, object]:
    (found,) = json.loads(lab.cli("outputs", name, "--json").succeeded().output)["outputs"]
    assert isinstance(found, dict)
    return found


def test_the_core_dump_of_a_crashed_job_is_among_its_outputs(
    lab: RunLab, core_pattern: Callable[[str], object], tmp_path: Path
) -> None:
    core_pattern("core.%p")
    crash = "mkdir deep; cd deep; sh -c 'kill -SEGV $$'"
    made = {"working_dir": "/tmp/work", "user": "65534", "core_dumps": True}
    assert lab.apply("crashed", commands=[crash], **made).status == SIGSEGV
    assert listed(lab, "crashed")["count"] == 1
    lab.cli("outputs", "crashed", "--pull", tmp_path).succeeded()
    (core,) = (tmp_path / "cores").iterdir()
    assert core.name.startswith("core.")
    assert core.read_bytes()[:4] == b"\x7fELF"
    assert b"core dumps: /tmp/work/deep/core." in lab.log("crashed")


def test_a_node_that_gives_core_dumps_away_says_so_in_the_jobs_log(
    lab: RunLab, core_pattern: Callable[[str], object]
) -> None:
    core_pattern("|/bin/false %p")
    assert lab.apply("given", commands=["kill -SEGV $$"], core_dumps=1).status == SIGSEGV
    expected = b"core dumps: none is kept: on this node kernel.core_pattern gives core dumps to"
    assert expected in lab.log("given")


def test_a_job_that_asks_for_none_keeps_none(
    lab: RunLab, core_pattern: Callable[[str], object]
) -> None:
    core_pattern("core.%p")
    assert lab.apply("quiet", commands=["kill -SEGV $$"]).status == SIGSEGV
    assert listed(lab, "quiet")["state"] == "none"
