"""Measure starts, memory and logs in one run and print them as a Markdown table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from bench import history, logs, memory, report, starts
from bench.parts import add_options, running_parts

T = TypeVar("T")


def main() -> None:
    given = _parser().parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench: it starts its own dockerd and sshd: run it as root")
    machine = report.machine()
    with running_parts(networks=given.networks, crun=given.crun) as parts:
        measured = report.Report(
            command=_command(given),
            measured_at=report.now(),
            machine=f"{machine}; {report.engine(parts.docker)}",
            memory=_announced("idle memory", lambda: memory.measure(parts)),
            starts=_announced("starts", lambda: starts.measure(parts, given.starts)),
            throughput=_announced("logs", lambda: logs.measure(parts, given.mebibytes, given.logs)),
        )
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    print(report.markdown(measured))
    history.conclude(report.figures(measured), given.release, measured.machine)


def _command(given: argparse.Namespace) -> str:
    crun = f" --crun {given.crun}" if given.crun else ""
    return f"./dev bench --networks {given.networks}{crun}"


def _announced(what: str, measure: Callable[[], T]) -> T:
    print(f"bench: measuring {what}", file=sys.stderr)
    return measure()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write all figures there too")
    history.add_option(parser)
    add_options(parser)
    add("--starts", type=int, default=10, metavar="N", help="tries (default: %(default)s)")
    add("--logs", type=int, default=3, metavar="N", help="tries (default: %(default)s)")
    add("--mebibytes", type=int, default=512, metavar="N", help="of log (default: %(default)s)")
    return parser


if __name__ == "__main__":
    main()
