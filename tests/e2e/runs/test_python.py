"""Programs with the Python client: the examples, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import Client, Task
from tests.support.lab import UNTIL_ASKED, RunLab

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def _program(lab: RunLab, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, lab.image],
        env={**os.environ, **lab.controller.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_a_program_submits_a_task_and_shows_its_output(lab: RunLab) -> None:
    done = _program(lab, "hello.py")
    assert done.stdout.startswith("hello from ")
    assert done.stdout.endswith("\nseed 7\n")
    assert ": done: " in done.stderr.splitlines()[-1]


def test_a_program_awaits_several_runs_at_once(lab: RunLab) -> None:
    assert _program(lab, "sweep.py").stdout == "best size: 8\n"


def test_output_goes_on_where_it_was_while_the_controller_restarts(lab: RunLab) -> None:
    told: list[str] = []
    with Client(lab.controller.url, lab.controller.token, tell=told.append) as client:
        run = client.submit(
            Task(image=lab.image, commands=["echo one", UNTIL_ASKED, "echo two"]), name="resumed"
        )
        pieces = run.logs(follow=True)
        first = next(pieces)
        lab.controller.restart()
        lab.let_go("resumed")
        assert (first.text, "".join(piece.text for piece in pieces)) == ("one\n", "two\n")
        assert run.wait().exit_status == 0
        resumed = run.logs(attempt=first.attempt, offset=first.end)
        assert [piece.text for piece in resumed] == ["two\n"]
    assert told[-1] == "the controller is back"
