"""Examples in pages that are run as they stand.

A comment in the line before a fence says what the fence is:

    <!-- file: train.yaml -->   a file that the reader writes
    <!-- run -->                commands that the reader types, in one shell, each must succeed
    <!-- prints -->             lines that the commands before it print, in this order; `…` stands
                                for what differs from one try to the next
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import LONG

_MARKED = re.compile(
    r"^ *<!-- (?P<kind>file|run|prints)(?:: (?P<name>\S+))? -->\n"
    r" *```\w*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Example:
    kind: str
    name: str | None
    text: str


def examples(page: str) -> list[Example]:
    """Return the marked fences of a page, in their order."""
    return [
        Example(found["kind"], found["name"], found["text"]) for found in _MARKED.finditer(page)
    ]


def play(page: str, folder: Path, env: Mapping[str, str]) -> None:
    """Follow the page in this folder. A command that fails, or prints something else, is a
    failed assertion."""
    output = ""
    for example in examples(page):
        if example.kind == "file":
            assert example.name is not None
            (folder / example.name).write_text(example.text)
        elif example.kind == "run":
            output = _run(example.text, folder, env)
        else:
            missing = missing_line(example.text, output)
            assert missing is None, f"{missing!r} is not in:\n{output}"


def missing_line(shown: str, output: str) -> str | None:
    """Return the first line of the page that the output lacks after those before it."""
    lines = iter(output.splitlines())
    for wanted in shown.splitlines():
        pattern = ".*".join(map(re.escape, wanted.rstrip().split("…")))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return wanted
    return None


def _run(commands: str, folder: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG * len(commands.splitlines()),
        check=False,
    )
    assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout
