"""How long a user waits for a job's first output on the process engine:
`python -m bench.process_starts [TRIES]`.

The same path as `./dev bench` measures with Docker (real sshd, shim and controller), without a
container.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.parts import introduce
from bench.starts import of_api, of_process
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import SshDaemon

TRIES = 10
_TASK = {"type": "task", "commands": ["echo hello"]}
_PAUSE = 0.3
"""Seconds between two tries, so that what follows a job's end does not disturb the next one."""


class Node(NamedTuple):
    controller: ControllerProcess


@contextmanager
def running_node(folder: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        (folder / "ssh").mkdir()
        sshd = SshDaemon(folder / "ssh")
        stack.callback(sshd.stop)
        sshd.start()
        shim = ShimProcess(folder / "n", "process")
        stack.callback(shim.close)
        shim.start()
        controller = ControllerProcess(folder / "c")
        stack.callback(controller.close)
        controller.start()
        introduce(controller, sshd, shim)
        yield Node(controller)


def measure(tries: int) -> tuple[list[float], list[float]]:
    """Return seconds by the command and by the API."""
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with running_node(folder) as node:
            task = folder / "task.yaml"
            task.write_text(json.dumps(_TASK))
            return _measure(node, task, tries)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(node: Node, task: Path, tries: int) -> tuple[list[float], list[float]]:
    program = str(Path(sys.executable).parent / "fairlead")
    env = {**os.environ, **node.controller.env}
    names = (f"start-{number}" for number in itertools.count())
    command, through_api = [], []
    for _ in range(tries + 1):
        command.append(of_process([program, "apply", "-f", str(task), "-n", next(names)], env)[0])
        time.sleep(_PAUSE)
        through_api.append(of_api(node, task, next(names)))
        time.sleep(_PAUSE)
    return command[1:], through_api[1:]


def main() -> None:
    command, through_api = measure(int(sys.argv[1]) if len(sys.argv) > 1 else TRIES)
    sys.stdout.write(
        f"process engine: apply → first line {median(command):.3f} s (best {min(command):.3f}); "
        f"POST → first line {median(through_api):.3f} s (best {min(through_api):.3f})\n"
    )


if __name__ == "__main__":
    main()
