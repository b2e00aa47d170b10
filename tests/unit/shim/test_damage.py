"""Records are damaged: each GPU keeps its right owner, or its owner is told no.

Here by a few seeds; `./dev prove records` takes 200.
"""

from __future__ import annotations

from pathlib import Path

from tests.unit.shim.damage import DamagedNode

SEEDS = 20


async def test_every_gpu_has_its_right_owner_after_damage(tmp_path: Path) -> None:
    checked = 0
    for seed in range(SEEDS):
        node = DamagedNode(tmp_path / str(seed), seed)
        await node.live()
        node.damage()
        try:
            await node.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {node.done}: {error!r}") from error
        checked += 1
    assert checked == SEEDS
