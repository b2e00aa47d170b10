"""What `fairlead apply` must not load before its request is on its way: its user waits for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEFT_OUT = (
    *("email", "http", "ssl", "json", "random", "logging", "asyncio", "encodings.idna", "shlex"),
    *("cyclopts", "rich", "websockets", "typing_extensions", "dataclasses"),
    *(
        "fairlead.documents.runs",
        "fairlead.model.statuses",
        "fairlead.follow",
        "fairlead.cli.follow",
    ),
    *("fairlead.configuration.convert", "fairlead.configuration.parse"),
)
OF_WHO_READS = (
    *("yaml", "msgspec", "typing", "datetime", "uuid", "base64", "re", "pathlib", "urllib.parse"),
    *("fairlead.submission", "fairlead.configuration"),
)
"""What only a command needs that reads the file itself."""
PLAIN = "type: task\nimage: busybox\ncommands: [echo hello]\n"
BUDGET, BUDGET_OF_WHO_READS = 84, 161
"""Modules, with those that Python loads itself."""
SHOW = """
import os, sys
sys.path[:0] = {path!r}

def look(event, given):
    if event == "socket.connect":
        there = (name for name, module in sys.modules.items() if module is not None)
        print("\\n".join(there), flush=True)
        os._exit(0)

sys.addaudithook(look)
sys.argv = ["fairlead", "apply", "task.yaml"]
from fairlead.__main__ import main
main()
"""


def loaded(folder: Path, text: str) -> set[str]:
    (folder / "task.yaml").write_text(text)
    # Without `site`: a checkout's finder of modules loads some that a user's Python does not.
    argv = [sys.executable, "-I", "-S", "-c", SHOW.format(path=sys.path)]
    env = {"HOME": str(folder), "FAIRLEAD_URL": "http://127.0.0.1:9", "FAIRLEAD_TOKEN": "x"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=folder, env=env)
    return set(done.stdout.split())


def test_a_plain_task_loads_little_before_it_connects(tmp_path: Path) -> None:
    found = loaded(tmp_path, PLAIN)
    assert "fairlead.connections.http1" in found
    assert found.isdisjoint((*LEFT_OUT, *OF_WHO_READS))
    assert len(found) <= BUDGET


def test_a_file_that_is_read_here_loads_no_more_than_that_needs(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{PLAIN}secrets: [HOME]\n")
    assert {"fairlead.connections.http1", "yaml"} <= found
    assert found.isdisjoint(LEFT_OUT)
    assert len(found) <= BUDGET_OF_WHO_READS
