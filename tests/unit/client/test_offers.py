"""What is free, by the kind of GPU."""

from __future__ import annotations

from typing import Any

from fairlead.documents.nodes import GpuView, NodeView
from fairlead.summaries.offers import offers


def _gpu(number: int, *, in_use: bool = False, healthy: bool = True, name: str = "H100") -> GpuView:
    return GpuView(
        uuid=f"GPU-{number}",
        name=name,
        memory=80 << 30,
        healthy=healthy,
        message=None,
        in_use=in_use,
    )


def _offering(name: str, gpus: tuple[GpuView, ...], **fields: Any) -> NodeView:
    empty = dict.fromkeys(NodeView.__struct_fields__)
    sizes = {"cpu": 16.0, "cpu_allocated": 4.0, "memory": 64 << 30, "memory_allocated": 1 << 30}
    state = {"status": "connected", "draining": False, "cordoned": False}
    return NodeView(**{**empty, **sizes, **state, "name": name, "gpus": gpus, **fields})


def test_an_offer_counts_what_is_free_by_the_kind_of_gpu() -> None:
    nodes = [
        _offering("a", (_gpu(1), _gpu(2, in_use=True), _gpu(3))),
        _offering("b", (_gpu(4), _gpu(5, healthy=False))),
        _offering("c", (_gpu(6, name="A100"),)),
        _offering("plain", ()),
        _offering("drained", (_gpu(7),), draining=True),
        _offering("away", (_gpu(8),), status="unreachable"),
        _offering("unfit", (_gpu(9),), unfit="its clock is wrong"),
    ]
    found = offers(nodes)
    assert [(one.gpu, one.free, one.total, one.most_on_a_node, one.nodes) for one in found] == [
        ("H100", 3, 5, 2, ("a", "b")),
        ("A100", 1, 1, 1, ("c",)),
        (None, 0, 0, 0, ("plain",)),
    ]
    assert (found[0].cpu_free, found[0].memory_free) == (24.0, 126 << 30)
