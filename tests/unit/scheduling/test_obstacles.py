"""What is said of a node that takes no new work."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.scheduling.diagnosis import unusable
from fairlead.model.statuses import NodeStatus
from tests.unit.scheduling.cluster import gpu_node


@pytest.mark.parametrize("status", NodeStatus)
def test_each_status_of_a_node_has_words(status: NodeStatus) -> None:
    found = unusable(replace(gpu_node("n1"), status=status, message="its machine was ordered"))
    expected = None if status is NodeStatus.CONNECTED else f"{status}: its machine was ordered"
    assert (None if found is None else found.words()) == expected
