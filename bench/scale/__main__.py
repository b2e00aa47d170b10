"""Measure a controller with thousands of nodes and print a table of figures and goals."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from pathlib import Path

import msgspec

from bench import history
from bench.scale import commits, parts, passes
from bench.scale.lab import ScaleLab, add_ssh_nodes, behind_sshd, running
from bench.scale.parts import Row, Stopwatch
from tests.support.ssh_daemon import SshDaemon

PARTS = ("pass", "commit", "submit", "steady", "exits", "gang", "reconnect", "ssh")
NODES = 5000
SSH_NODES = 200
OF_ALL_NODES = frozenset({"scale.cpu", "scale.node", "scale.submit"})


def main() -> None:
    given = _parser().parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench: it starts its own sshd: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: stopped"))
    wanted = tuple(given.only.split(",")) if given.only else PARTS
    if not set(wanted) <= set(PARTS):
        raise SystemExit(f"bench: --only takes some of {','.join(PARTS)}")
    rows: list[Row] = []
    machine = _machine()
    print(f"bench: {machine}", file=sys.stderr)
    if "pass" in wanted:
        rows += _printed(passes.measure())
    if "commit" in wanted:
        rows += _printed(commits.measure())
    if set(wanted) - {"pass", "commit", "ssh"}:
        with running(given.nodes, given.profile) as lab:
            asyncio.run(_local(lab, wanted, rows))
    if "ssh" in wanted:
        with running(given.ssh_nodes) as lab, behind_sshd(lab) as sshd:
            asyncio.run(_ssh(lab, sshd, rows))
    _print(rows)
    figures = {row.kind: row.value for row in rows if row.kind}
    if given.nodes != NODES:  # fewer nodes share what is there once, and place jobs sooner
        figures = {kind: value for kind, value in figures.items() if kind not in OF_ALL_NODES}
    history.conclude(figures, given.release, machine)


async def _local(lab: ScaleLab, wanted: tuple[str, ...], rows: list[Row]) -> None:
    """Measure the parts; the parts that one needs run before it."""
    base = lab.rss()
    rows += _printed(await parts.connect(lab))
    rows += _printed(await parts.submit(lab, range(len(lab.node_names))))
    if "steady" in wanted:
        rows += _printed(await parts.steady(lab, base))
    if {"exits", "gang"} & set(wanted):
        rows += _printed(await parts.exits(lab))
    if "gang" in wanted:
        rows += _printed(await parts.gang(lab))
    if "reconnect" in wanted:
        rows += _printed(await parts.reconnect(lab))


async def _ssh(lab: ScaleLab, sshd: SshDaemon, rows: list[Row]) -> None:
    """Measure SSH. What all nodes share, such as caches and threads, is separated from the cost of
    each node by the nodes that were added last."""
    count, base = len(lab.node_names), lab.rss()
    half = count // 2
    found = await _ssh_nodes(lab, sshd, range(half))
    await asyncio.sleep(parts.SETTLING_SECONDS)
    at_half = lab.rss()
    found += await _ssh_nodes(lab, sshd, range(half, count))
    found += await parts.steady(lab, base)
    found += parts.slope(lab, base, at_half, half)
    found += await parts.exits(lab, 100)
    found += await parts.reconnect(lab, count)
    rows += _printed([_by_ssh(row) for row in found])


def _by_ssh(row: Row) -> Row:
    # The figures of a release are of nodes without SSH, but for the memory of a node by SSH.
    kind = row.kind if row.kind == "scale.ssh_node" else ""
    return msgspec.structs.replace(row, what=f"by SSH: {row.what}", kind=kind)


async def _ssh_nodes(lab: ScaleLab, sshd: SshDaemon, numbers: range) -> list[Row]:
    watch = Stopwatch(lab)
    await add_ssh_nodes(lab, sshd, [lab.node_names[number] for number in numbers])
    added = Row(f"{len(numbers)} nodes added and connected", str(watch))
    return [added, *await parts.submit(lab, numbers)]


def _printed(rows: list[Row]) -> list[Row]:
    for row in rows:
        print(f"bench: {time.strftime('%T')} {row.what}: {row.figure}", file=sys.stderr)
    print(f"bench: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return rows


def _print(rows: list[Row]) -> None:
    print("| | figure | goal | |\n| --- | ---: | --- | --- |")
    for row in rows:
        verdict = {None: "", True: "met", False: "missed"}[row.met]
        print(f"| {row.what} | {row.figure} | {row.goal} | {verdict} |")


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} before"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    add = parser.add_argument
    add("--only", metavar="PART,…", help=f"of {','.join(PARTS)} (default: all)")
    add("--nodes", type=int, default=NODES, metavar="N", help="default: %(default)s")
    add("--ssh-nodes", type=int, default=SSH_NODES, metavar="N", help="default: %(default)s")
    add("--profile", type=Path, metavar="FILE", help="of the controller, by cProfile")
    history.add_option(parser)
    return parser


if __name__ == "__main__":
    main()
