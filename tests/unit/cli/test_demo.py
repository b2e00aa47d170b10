"""The demo runs, and prints what the README says that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import LONG

PROJECT = Path(__file__).parents[3]
_DIFFERS = (
    (r"\b[0-9a-f]{16}\b", "ID"),
    (r"\d+(\.\d+)? s\b", "SECONDS"),
    (r"\d+s ago", "AGO"),
    (r"[\d.]+ ?[KMG]i?B", "SIZE"),
    (r"http://\S+", "URL"),
    (r" +", " "),
)
"""What differs from one run to the next, and the word for it."""


_PASSING = re.compile(r"fairlead: (placed|starting) on ")
"""Steps that a run may pass through too fast to be seen."""


def shape(text: str) -> tuple[list[str], list[str]]:
    """The lines of the commands, and what `fairlead` notes beside them: two streams in one."""
    for pattern, word in _DIFFERS:
        text = re.sub(pattern, word, text)
    lines = [line.strip() for line in text.strip().splitlines() if not _PASSING.match(line)]
    notes = [line for line in lines if line.startswith("fairlead: ")]
    return [line for line in lines if line not in notes], notes


def test_the_readme_shows_what_the_demo_prints() -> None:
    readme = (PROJECT / "README.md").read_text()
    (shown,) = re.findall(r"```\n(== .*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=PROJECT,
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert shape(done.stdout[done.stdout.index(shown.partition("\n")[0]) :]) == shape(shown)
