"""Commands about fleets, and about nodes beside adding and removing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.commands.nodes import inventory
from fairlead.documents.nodes import NodeView
from tests.unit.cli.conftest import Fairlead
from tests.unit.cli.output import of


async def test_nodes_belong_to_fleets_and_both_have_attributes(start: Fairlead) -> None:
    added = await of(start, "fleet", "add", "big", "--placement", "rack", "--attribute", "site=b")
    assert (added.status, added.out) == (0, b"fleet big added\n")
    node = ("node", "add", "n1", "--local", "/run/shim.sock", "--fleet", "big")
    assert (await of(start, *node, "--attribute", "rack=r1")).status == 0
    shown = (await of(start, "node", "show", "n1")).out
    assert b"rack=r1" in shown
    assert b"big" in shown
    moved = await of(
        start, "node", "set", "n1", "--fleet", "default", "--attribute", "rack=", "--json"
    )
    assert (json.loads(moved.out)["fleet"], json.loads(moved.out)["attributes"]) == ("default", {})
    assert (await of(start, "fleet", "set", "big", "--placement", "")).status == 0
    assert b"site=b" in (await of(start, "fleet", "list")).out
    assert (await of(start, "fleet", "remove", "big")).status == 0


async def test_a_fleet_whose_provider_is_not_there_is_refused_with_its_line(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("type: fleet\nname: burst\nmachines:\n  nodes: 0..1\n  provider: nowhere\n")
    refused = await of(start, "apply", "-f", str(file))
    assert (refused.status, refused.out) == (2, b"")
    assert f"{file}:5: machines.provider: there is no provider 'nowhere'" in refused.err
    assert b"burst" not in (await of(start, "fleet", "list")).out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"networks": 62}, "62 at once"),
        ({"networks": 1022, "network_kind": "agent"}, "1022 at once, made by its shim"),
        (
            {"networks": 62, "network_kind": "docker", "network_why": "no nft"},
            "62 at once, made by its engine (no nft)",
        ),
        ({"networks": 62, "network_kind": "a later kind"}, "62 at once"),
    ],
)
def test_a_node_says_who_makes_its_networks(fields: dict[str, Any], said: str) -> None:
    node = NodeView(**{**dict.fromkeys(NodeView.__struct_fields__), **fields})
    assert inventory._networks(node) == said


async def test_a_change_that_changes_nothing_is_refused(start: Fairlead) -> None:
    for what in ("node", "fleet"):
        refused = await of(start, what, "set", "default")
        assert (refused.status, "say what to change: --attribute" in refused.err) == (2, True)


async def test_a_node_is_cordoned_and_a_drain_has_a_deadline(start: Fairlead) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    assert (await of(start, "node", "cordon", "n1", "--reason", "noisy")).status == 0
    assert b"cordoned: noisy" in (await of(start, "node", "list")).out
    assert (await of(start, "node", "uncordon", "n1")).status == 0
    drained = await of(start, "node", "drain", "n1", "--deadline", "30m", "--json")
    assert json.loads(drained.out)["drain_deadline"] is not None
    shown = (await of(start, "node", "list")).out
    assert (b"cordoned" in shown, b"; until 20" in shown) == (False, True)


async def test_a_node_that_is_cordoned_and_drained_is_in_use_again_after_both_ended(
    start: Fairlead,
) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    for begun in ("cordon", "drain"):
        assert (await of(start, "node", begun, "n1")).status == 0
    first = (await of(start, "node", "uncordon", "n1")).out
    assert first == b"node n1 is still draining: `fairlead node resume n1` ends that\n"
    assert (await of(start, "node", "cordon", "n1")).status == 0
    second = (await of(start, "node", "resume", "n1")).out
    assert second == b"node n1 is still cordoned: `fairlead node uncordon n1` ends that\n"
    assert (await of(start, "node", "uncordon", "n1")).out == b"node n1 is in use again\n"


async def test_a_deadline_that_has_passed_is_not_shown_as_one_to_come(start: Fairlead) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    assert (await of(start, "node", "drain", "n1", "--deadline", "0s")).status == 0
    shown = (await of(start, "node", "list")).out
    assert (b"until" in shown, b"passed its drain deadline at 20" in shown) == (False, True)


async def test_a_malformed_value_is_named_by_its_option(start: Fairlead) -> None:
    attribute = await of(start, "fleet", "add", "big", "--attribute", "rack")
    assert (attribute.status, "--attribute: 'rack' is not NAME=VALUE" in attribute.err) == (2, True)
    deadline = await of(start, "node", "drain", "n1", "--deadline", "soon")
    assert (deadline.status, "--deadline" in deadline.err) == (2, True)


async def test_a_node_without_unknown_tasks_lists_none(start: Fairlead) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    assert (await of(start, "node", "tasks", "n1")).out.count(b"\n") == 1
    refused = await of(start, "node", "stop-task", "n1", "t1")
    assert (refused.status, "no task 't1' in quarantine" in refused.err) == (1, True)
