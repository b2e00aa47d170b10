"""Records are damaged: each GPU keeps its right owner, or its owner is told no.

Here by a few seeds; `./dev prove records` takes 200.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.shim.damage import DamagedNode

SEEDS = 40
_EACH = 20


@pytest.mark.parametrize("first", range(0, SEEDS, _EACH))
async def test_every_gpu_has_its_right_owner_after_damage(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + _EACH):
        node = DamagedNode(tmp_path / str(seed), seed)
        await node.live()
        node.damage()
        try:
            await node.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {node.done}: {error!r}") from error
    assert seed == first + _EACH - 1
