"""Commands about gateways, and files of `type: gateway`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Fairlead
from tests.unit.cli.output import of

ADD = ("gateway", "add", "main", "--domain", "apps.test", "--certificate", "internal")


async def test_a_gateway_is_added_listed_shown_and_removed(start: Fairlead) -> None:
    added = await of(start, *ADD, "--local", "/run/agent.sock")
    assert (added.status, added.out.splitlines()[0]) == (0, b"gateway main added")
    assert b"connected" in (await of(start, "gateway", "list")).out
    assert b"domain apps.test" in (await of(start, "gateway", "show", "main")).out
    assert (await of(start, "gateway", "remove", "main")).out == b"gateway main removed\n"
    listed = await of(start, "gateway", "list", "--json")
    assert json.loads(listed.out)["gateways"] == []


async def test_a_gateway_whose_agent_does_not_answer_is_refused_with_the_reason(
    start: Fairlead,
) -> None:
    away = ("gateway", "add", "main", "--domain", "away.test", "--local", "/run/agent.sock")
    refused = await of(start, *away)
    assert refused.status == 1
    assert "the agent of gateway main cannot be reached: nothing answers" in refused.err


async def test_a_file_adds_a_gateway_and_changes_it(start: Fairlead, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    text = "type: gateway\nname: main\ndomain: apps.test\nlocal_socket: /run/agent.sock\n"
    for more, default in (("", False), ("default: true\n", True)):
        file.write_text(text + more)
        applied = await of(start, "apply", "-f", str(file), "--json")
        assert json.loads(applied.out)["default"] is default


async def test_a_gateway_needs_one_address(start: Fairlead) -> None:
    refused = await of(start, *ADD)
    assert (refused.status, "--host HOST or --local SOCKET" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("host: gate", "domain"),
        ("domain: apps.test", "host"),
        ("domain: apps.test\nhost: gate\ncolour: red", "colour"),
        ("domain: apps.test\nhost: gate\ncertificate: gold", "certificate"),
        ("domain: apps.test\nbackend: aws", "backend: is not a field: no machine is rented"),
        ("domain: apps.test\nhost: gate\ncertificate: {emial: a@b}", "did you mean email?"),
    ],
)
async def test_a_wrong_file_is_refused_with_the_field(
    start: Fairlead, tmp_path: Path, lines: str, said: str
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"type: gateway\nname: main\n{lines}\n")
    refused = await of(start, "apply", "-f", str(file))
    assert refused.status == 2
    assert said in refused.err
