"""Measure the CPU time of short `fairlead` commands, with a controller and a node beside them, and
how long they take until their first request is there.

The commands run one after the other; a figure is the median of user and system time, as the kernel
counts it for the process. The node's engine runs processes, so nothing but the command is large.
The time until a request is that of a clock, least and median; `--against` compares with another
`fairlead`, in turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench import history, report
from tests.support.processes import ControllerProcess, ShimProcess, run_cli
from tests.support.waiting import wait_until

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
_TASK = "type: task\ncommands: [echo hello]\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench command", description=__doc__)
    parser.add_argument("--tries", type=int, default=11, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--against", metavar="FAIRLEAD", help="measure only the time until a request, of both"
    )
    history.add_option(parser)
    given = parser.parse_args()
    machine = report.machine()
    if given.against is not None:
        _compare([FAIRLEAD, given.against], given.tries)
        return
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    folder.chmod(0o755)
    shim = ShimProcess(folder / "n", "process")
    controller = ControllerProcess(folder / "c")
    try:
        shim.start()
        controller.start()
        _introduce(controller, shim)
        print("| command | CPU |\n| --- | ---: |")
        measured = measure(controller.env, folder, given.tries)
        for what, seconds in measured.items():
            print(f"| {what} | {seconds * 1000:.0f} ms |")
        _compare([FAIRLEAD], given.tries)
        figures = {"command.apply": measured["`fairlead apply`"] / measured["`python -c pass`"]}
        history.conclude(figures, given.release, machine)
    finally:
        controller.close()
        shim.close()
        shutil.rmtree(folder, ignore_errors=True)


def measure(env: Mapping[str, str], folder: Path, tries: int) -> dict[str, float]:
    """Return the CPU seconds of each command."""
    file = folder / "task.yaml"
    file.write_text(_TASK)
    run_cli("apply", str(file), "-n", "kept", env=env).succeeded()
    kinds = {
        "`python -c pass`": [sys.executable, "-c", "pass"],
        "`fairlead apply -d`": [FAIRLEAD, "apply", str(file), "-d"],
        "`fairlead apply`": [FAIRLEAD, "apply", str(file)],
        "`fairlead ps`": [FAIRLEAD, "ps", "-a"],
        "`fairlead logs`": [FAIRLEAD, "logs", "kept"],
        "`fairlead stop`": [FAIRLEAD, "stop", "kept"],
        "`import fairlead.client`": [sys.executable, "-c", "import fairlead.client"],
    }
    return {what: median(_cpu(argv, env) for _ in range(tries)) for what, argv in kinds.items()}


def _compare(programs: Sequence[str], tries: int) -> None:
    """Print how long each program takes until its request is there."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        env = {
            "FAIRLEAD_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "FAIRLEAD_TOKEN": "fl_of_nobody",
            "HOME": folder,
        }
        file = Path(folder, "task.yaml")
        file.write_text(_TASK)
        kinds = {"apply": ["apply", str(file)], "ps": ["ps"], "logs": ["logs", "kept"]}
        print("\n| until its request is there | least | median |\n| --- | ---: | ---: |")
        for what, arguments in kinds.items():
            took: dict[str, list[float]] = {program: [] for program in programs}
            for _ in range(tries):
                for program in programs:
                    took[program].append(_until_request(listener, [program, *arguments], env))
            for program, seconds in took.items():
                which = f" of {program}" if len(programs) > 1 else ""
                least, usual = min(seconds) * 1000, median(seconds) * 1000
                print(f"| `fairlead {what}`{which} | {least:.1f} ms | {usual:.1f} ms |")


def _until_request(listener: socket.socket, argv: Sequence[str], env: Mapping[str, str]) -> float:
    quiet, begin = subprocess.DEVNULL, time.perf_counter()
    with subprocess.Popen(argv, env={**os.environ, **env}, stdout=quiet, stderr=quiet) as started:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            seconds = time.perf_counter() - begin
            started.kill()  # it would wait for an answer
    return seconds


def _cpu(argv: Sequence[str], env: Mapping[str, str]) -> float:
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(argv, env={**os.environ, **env}, stdout=quiet, stderr=quiet)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def _introduce(controller: ControllerProcess, shim: ShimProcess) -> None:
    controller.cli("node", "add", "bench", "--local", str(shim.socket)).succeeded()
    wait_until(
        lambda: (
            controller.cli("node", "list", "--json").succeeded().json["nodes"][0]["status"]
            == "connected"
        ),
        20,
        "the node to be connected",
    )


if __name__ == "__main__":
    main()
