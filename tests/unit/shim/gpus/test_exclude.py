"""A GPU that the operator keeps is never offered, however it is named."""

from __future__ import annotations

import pytest

from shim.errors import StartError
from shim.gpus.selection import Exclusion
from tests.unit.shim.gpus.parts import gpu, mig

SECOND = gpu(1, uuid="GPU-ab12-cd", pci="00000000:3B:00.0")


@pytest.mark.parametrize(
    "text", ["1", "GPU-ab12-cd", "gpu-AB12-CD", "3b:00.0", "0000:3B:00.0", "00000000:3b:00.0"]
)
def test_a_gpu_is_excluded_by_index_uuid_or_pci_address(text: str) -> None:
    exclusion = Exclusion.parse(text)
    assert exclusion.covers(SECOND)
    assert not exclusion.covers(gpu(0))


@pytest.mark.parametrize("text", ["0", "GPU-0", "17:00.0"])
def test_an_excluded_gpu_takes_its_mig_instances_with_it(text: str) -> None:
    assert Exclusion.parse(text).covers(mig(0, 3))
    assert not Exclusion.parse(text).covers(mig(1, 3))


@pytest.mark.parametrize("text", ["", "first", "-1", "GPU", "3b:00", "²", "GPU-"])
def test_an_exclusion_that_names_no_gpu_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(StartError, match="expected an index"):
        Exclusion.parse(text)
