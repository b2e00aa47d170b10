"""The history of a node: what is an event, and how many are kept."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Node, NodeAddress, NodeCapacity, NodeGpu, NodeStatus
from controller.lifecycle.node_history import MAX_EVENTS, with_history

GPU = NodeGpu(uuid="GPU-1", name="H100", memory=80)
BROKEN = replace(GPU, healthy=False, message="cordoned: XID 79 (the GPU has fallen off the bus)")
NODE = Node(
    id="n1",
    name="n1",
    address=NodeAddress(shim_socket="/none", host_key="ssh-ed25519 A"),
    status=NodeStatus.CONNECTED,
    capacity=NodeCapacity(gpus=(GPU,)),
    boot_id="b1",
    install_id="i1",
    created_at=0.0,
)
LOST = {"status": NodeStatus.LOST, "message": "silent for 300 s"}


@pytest.mark.parametrize(
    ("before", "change", "told"),
    [
        ({}, LOST, [("lost", "silent for 300 s")]),
        ({}, {"status": NodeStatus.CONNECTING}, []),
        (LOST, {"status": NodeStatus.CONNECTED, "message": None}, [("connected", None)]),
        ({}, {"boot_id": "b2"}, [("the machine was restarted", None)]),
        ({"boot_id": None}, {"boot_id": "b2"}, []),
        ({}, {"install_id": "i2"}, [("the machine was installed anew", None)]),
        ({}, {"cordoned": True, "cordon_reason": "new disk"}, [("cordoned", "new disk")]),
        ({"cordoned": True}, {"cordoned": False}, [("uncordoned", None)]),
        ({}, {"draining": True, "drain_reason": "moves"}, [("draining", "moves")]),
        ({"draining": True}, {"draining": False}, [("the drain ended", None)]),
        ({}, {"unfit": "disk full"}, [("the health check failed", "disk full")]),
        ({"unfit": "disk full"}, {"unfit": None}, [("the health check passed", None)]),
        ({}, {"fleet": "b"}, [("moved to fleet b", None)]),
        (
            {},
            {"capacity": NodeCapacity(gpus=(BROKEN,))},
            [("GPU GPU-1 is cordoned", "XID 79 (the GPU has fallen off the bus)")],
        ),
        (
            {"capacity": NodeCapacity(gpus=(BROKEN,))},
            {"capacity": NodeCapacity(gpus=(GPU,))},
            [("GPU GPU-1 is offered again", None)],
        ),
        ({}, {"last_seen_at": 5.0}, []),
        ({}, {"capacity": replace(NODE.capacity, controllers=("SHA256:a",))}, []),
        (
            {"capacity": replace(NODE.capacity, controllers=("SHA256:a",))},
            {"capacity": replace(NODE.capacity, controllers=("SHA256:a", "SHA256:b"))},
            [("2 controllers may log in", "SHA256:a, SHA256:b")],
        ),
    ],
)
def test_a_change_that_people_ask_about_is_an_event(
    before: dict[str, Any], change: dict[str, Any], told: list[tuple[str, str | None]]
) -> None:
    node = replace(NODE, **before)
    history = with_history(node, replace(node, **change), 7.0, "admin").history
    assert [(one.what, one.why) for one in history] == told
    assert {(one.at, one.by) for one in history} <= {(7.0, "admin")}


def test_a_new_node_was_added_by_somebody() -> None:
    (event,) = with_history(None, NODE, 7.0, "ada").history
    assert (event.at, event.what, event.by) == (7.0, "added", "ada")


def test_what_was_the_latest_event_already_is_not_told_again() -> None:
    connecting = replace(NODE, status=NodeStatus.CONNECTING)
    once = with_history(connecting, NODE, 1.0)
    away = with_history(once, replace(once, status=NodeStatus.CONNECTING), 2.0)
    back = with_history(away, replace(away, status=NodeStatus.CONNECTED), 3.0)
    assert [(one.at, one.what) for one in back.history] == [(1.0, "connected")]


def test_a_change_that_was_made_of_an_older_node_loses_no_event() -> None:
    cordoned = with_history(NODE, replace(NODE, cordoned=True), 1.0)
    seen = with_history(cordoned, replace(NODE, cordoned=True, last_seen_at=2.0), 2.0)
    assert seen.history == cordoned.history


def test_the_latest_events_are_kept() -> None:
    node = NODE
    for at in range(100):
        node = with_history(node, replace(node, cordoned=at % 2 == 0), float(at))
    assert [one.at for one in node.history] == [float(at) for at in range(100 - MAX_EVENTS, 100)]
