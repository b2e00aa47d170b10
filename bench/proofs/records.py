"""Records are damaged in seeded ways: afterwards every GPU has the right owner, or there is a clear
refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from collections import Counter
from pathlib import Path

from bench.proofs._table import conclude
from tests.unit.shim.damage import DamagedNode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    given = parser.parse_args()
    logging.disable()
    broken: list[str] = []
    ways: Counter[str] = Counter()
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            node = DamagedNode(Path(folder) / "node", seed)
            try:
                asyncio.run(_one(node))
            except Exception as error:
                broken.append(f"seed {seed}: {node.done}: {error!r}")
            ways.update(done.split()[0] for done in node.done)
    figures = [("seeds", given.seeds), *ways.most_common()]
    conclude("records damaged", figures, broken)


async def _one(node: DamagedNode) -> None:
    await node.live()
    node.damage()
    await node.check()
