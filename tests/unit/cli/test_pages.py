"""Lists of nodes and machines that have more entries than one page of the API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import settings
from fairlead.cli.commands.nodes import machines

PAGES: dict[object, Any] = {None: (["a", "b"], "b"), "b": (["c", "d"], "d"), "d": (["e"], None)}


class Paged:
    """A controller that lists machines by twos."""

    def get(self, path: str, **query: object) -> bytes:
        assert (path, query.get("all")) == ("/v1/machines", "true")
        names, cursor = PAGES[query.get("cursor")]
        listed = [_machine(name) for name in names]
        return json.dumps({"machines": listed, "next_cursor": cursor}).encode()


def _machine(name: str) -> dict[str, Any]:
    words = ("id", "fleet", "status", "provider", "instance_type", "region", "ordered_at")
    nulls = (
        "zone",
        "instance_id",
        "end",
        "message",
        "trouble",
        "joined_at",
        "terminated_at",
        "idle_since",
    )
    numbers = {"price": 1.0, "cost": 2.0, "spot": False}
    return dict.fromkeys(words, "one") | dict.fromkeys(nulls) | numbers | {"name": name}


@pytest.fixture(autouse=True)
def controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "client", Paged)


def test_a_table_has_all_pages(capfd: pytest.CaptureFixture[str]) -> None:
    assert machines.list_(all=True) == 0
    _, *rows = capfd.readouterr().out.splitlines()
    assert [one.split()[0] for one in rows] == ["a", "b", "c", "d", "e"]


def test_a_document_has_all_pages(capfd: pytest.CaptureFixture[str]) -> None:
    assert machines.list_(all=True, json=True) == 0
    told = json.loads(capfd.readouterr().out)
    assert [one["name"] for one in told["machines"]] == ["a", "b", "c", "d", "e"]
    assert told["next_cursor"] is None
