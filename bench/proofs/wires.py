"""Wires after `kill -9` of the shim: none is left over, and no container believes it has one.

A process connects and disconnects containers as fast as it can, and is killed at a random moment.
The next one takes over, as a shim does that starts. A container whose start was reported must have
its network all the time. After each takeover no device, route, rule or address may be left over or
be there twice, and each container has the network that its label says, by IPv4 and IPv6. At the end
a stray wire is planted, which must be found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench.proofs._table import conclude
from tests.support.wire_kills import KillLab
from tests.support.wire_lab import wire_node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    name = f"fl-prove-{os.getpid()}"
    with wire_node(name, ipv6=True) as node, tempfile.TemporaryDirectory() as folder:
        lab = KillLab(node, Path(folder), given.seed)
        try:
            for number in range(given.kills):
                lab.kill_once()
                if number % 100 == 99:
                    print(f"{number + 1} kills", file=sys.stderr)
            broken = list(lab.broken)
            lab.plant()
            if len(lab.broken) == len(broken):
                broken.append("a planted stray was not found")
        finally:
            lab.close()
        if left := node.wires():
            broken.append(f"left at the end: {sorted(left)}")
    conclude("kills of a shim that connects containers", [("kills", lab.kills)], broken)
