"""What `fairlead machine orphans` prints."""

from __future__ import annotations

import json

import pytest

from fairlead import settings
from fairlead.cli.commands.nodes import machines

DUE = "2026-01-01T00:10:00.000Z"


def printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends_at: str | None
) -> tuple[str, str]:
    orphan = {
        "provider": "hz",
        "instance_id": "5000",
        "machine_id": None,
        "created_at": "2026-01-01T00:00:00.000Z",
        "seen_at": "2026-01-01T00:00:00.000Z",
        "ends_at": ends_at,
        "is_duplicate": False,
        "quarantined": ends_at is None,
    }

    class Answers:
        def get(self, path: str) -> bytes:
            assert path == "/v1/machine-orphans"
            return json.dumps({"orphans": [orphan]}).encode()

    monkeypatch.setattr(settings, "client", Answers)
    assert machines.orphans() == 0
    found = capfd.readouterr()
    return found.out, found.err


def test_an_orphan_that_ends_says_when(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, err = printed(monkeypatch, capfd, DUE)
    assert DUE in out
    assert err == ""


def test_an_orphan_that_is_kept_says_what_an_admin_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, err = printed(monkeypatch, capfd, None)
    assert "never: it is older than a restore" in out
    assert "end it at its provider once nobody needs it" in err
