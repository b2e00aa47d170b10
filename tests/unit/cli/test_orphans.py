"""What `fairlead machine orphans` and `machine end-orphans` print and ask for."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from fairlead import settings
from fairlead.cli.commands.nodes import machines
from fairlead.cli.commands.nodes.machines import MAX_ENDED_AT_ONCE
from fairlead.cli.errors import EXIT_FAILED, CliError

DUE = "2026-01-01T00:10:00.000Z"


def orphan(instance_id: str = "5000", provider: str = "hz", **more: Any) -> dict[str, Any]:
    fields = {
        "provider": provider,
        "instance_id": instance_id,
        "machine_id": None,
        "created_at": "2026-01-01T00:00:00.000Z",
        "seen_at": "2026-01-01T00:00:00.000Z",
        "ends_at": None,
        "is_duplicate": False,
        "quarantined": True,
        "is_to_end": False,
        "instance_type": None,
        "region": None,
        "zone": None,
        "spot": False,
        "price": None,
    }
    return fields | more


class Answers:
    """A controller with these orphans; `asked` has the bodies of requests to end some."""

    def __init__(self, *orphans: dict[str, Any]) -> None:
        self.orphans = orphans
        self.asked: list[Any] = []

    def get(self, path: str) -> bytes:
        assert path == "/v1/machine-orphans"
        return json.dumps({"orphans": self.orphans}).encode()

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        if path == "/v1/machine-orphans/forget":
            self.asked.append(body)
            (gone,) = (one for one in self.orphans if one["instance_id"] == body["instance_id"])
            return json.dumps({**gone, "unlisted": "it may still run"}).encode()
        assert path == "/v1/machine-orphans/end"
        assert len(body["instance_ids"]) <= MAX_ENDED_AT_ONCE
        self.asked.append(body)
        return json.dumps(
            {"orphans": [one for one in self.orphans if one["instance_id"] in body["instance_ids"]]}
        ).encode()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def answered_by(*orphans: dict[str, Any]) -> Answers:
        answers = Answers(*orphans)
        monkeypatch.setattr(settings, "client", lambda: answers)
        return answers

    return answered_by


def test_an_orphan_that_ends_says_when(use: Any, capfd: pytest.CaptureFixture[str]) -> None:
    use(orphan(ends_at=DUE, quarantined=False, price=0.1))
    assert machines.orphans() == 0
    found = capfd.readouterr()
    assert DUE in found.out
    assert found.err == ""


def test_an_orphan_that_is_kept_says_what_an_admin_does(
    use: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    use(
        orphan(instance_type="cx23", region="fsn1", fleet="burst", price=0.006),
        orphan("5001", is_to_end=True, ends_at=DUE),
    )
    assert machines.orphans() == 0
    found = capfd.readouterr()
    head, kept, ending = found.out.splitlines()
    assert " ".join(head.split()) == "PROVIDER ID FLEET TYPE WHERE PRICE/H MADE FOUND ENDS"
    assert kept.split()[:6] == ["hz", "5000", "burst", "cx23", "fsn1", "0.006"]
    assert kept.endswith("never: it is kept")
    assert ending.endswith("now: an admin had it ended")
    assert "`fairlead machine end-orphans PROVIDER ID` ends it" in found.err
    assert "no budget counts 1 machine whose price is not known" in found.err


def test_those_that_are_named_are_ended(use: Any, capfd: pytest.CaptureFixture[str]) -> None:
    answers = use(orphan(), orphan("5001"))
    assert machines.end_orphans("hz", "5001", "5001") == 0
    assert answers.asked == [{"provider": "hz", "instance_ids": ["5001"]}]
    assert capfd.readouterr().out == "5001 at hz is being ended\n"


def test_all_are_those_of_one_provider_that_were_listed(
    use: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = use(orphan(), orphan("i-1", "aws"), orphan("5001"))
    assert machines.end_orphans("hz", all=True) == 0
    assert answers.asked == [{"provider": "hz", "instance_ids": ["5000", "5001"]}]
    assert machines.end_orphans("gcp", all=True) == 0
    # The controller says when it has no such provider.
    assert answers.asked[1:] == [{"provider": "gcp", "instance_ids": []}]
    assert capfd.readouterr().err == "fairlead: provider gcp has no orphans\n"


def test_a_name_that_no_orphan_has_is_for_the_controller_to_refuse(use: Any) -> None:
    answers = use(orphan())
    assert machines.end_orphans("hz", "5000", "4999") == 0
    assert answers.asked == [{"provider": "hz", "instance_ids": ["4999", "5000"]}]


@pytest.mark.parametrize(("ids", "every"), [((), False), (("5000",), True)])
def test_either_ids_or_all_are_given(use: Any, ids: tuple[str, ...], every: bool) -> None:
    answers = use(orphan())
    with pytest.raises(CliError, match="or --all"):
        machines.end_orphans("hz", *ids, all=every)
    assert answers.asked == []


def test_who_does_not_agree_ends_nothing(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = use(orphan())
    asked: list[int] = []

    def disagree(orphans: list[Any]) -> bool:
        asked.append(len(orphans))
        return False

    monkeypatch.setattr(machines, "_agreed_to_end", disagree)
    assert machines.end_orphans("hz", "5000") == EXIT_FAILED
    assert (asked, answers.asked) == ([1], [])
    assert machines.end_orphans("hz", "5000", yes=True) == 0
    assert (asked, len(answers.asked)) == ([1], 1)


def test_thousands_are_ended_with_several_requests(
    use: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    every = [f"i-{number}" for number in range(2 * MAX_ENDED_AT_ONCE + 1)]
    answers = use(*map(orphan, every))
    assert machines.end_orphans("hz", all=True, json=True) == 0
    assert [len(one["instance_ids"]) for one in answers.asked] == [1000, 1000, 1]
    ended = json.loads(capfd.readouterr().out)["orphans"]
    assert [one["instance_id"] for one in ended] == every
    assert machines.end_orphans("hz", *every) == 0
    assert len(capfd.readouterr().out.splitlines()) == len(every)


def test_names_that_no_orphan_has_are_refused_before_any_of_thousands_ends(use: Any) -> None:
    every = [f"i-{number}" for number in range(MAX_ENDED_AT_ONCE + 1)]
    answers = use(*map(orphan, every))
    machines.end_orphans("hz", *every, "i-wrong")
    assert answers.asked[0]["instance_ids"][0] == "i-wrong"


def test_who_ends_what_is_older_than_a_restore_is_told_that_logs_go_with_it(
    use: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(orphan(), orphan("5001", quarantined=False))

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert machines.end_orphans("hz", "5001") == 0
    assert "/var/lib/fairlead/tasks" not in capfd.readouterr().err
    assert machines.end_orphans("hz", "5000") == 0
    assert "Copy what you need of /var/lib/fairlead/tasks first" in capfd.readouterr().err


def test_one_that_no_list_can_have_says_why_and_is_not_among_all(
    use: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    away = orphan("zone/5001", unlisted="it is in account ours: go back", is_to_end=True, price=1.0)
    answers = use(orphan(price=1.0), away)
    assert machines.orphans() == 0
    found = capfd.readouterr()
    assert found.out.splitlines()[2].endswith("not known")
    assert "fairlead: hz/zone/5001: it is in account ours: go back\n" in found.err
    assert machines.end_orphans("hz", all=True) == 0
    assert answers.asked == [{"provider": "hz", "instance_ids": ["5000"]}]


def test_one_without_a_record_is_forgotten_by_its_provider_and_id(
    use: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = use(orphan("zone/5001"))
    assert machines.forget("hz/zone/5001") == 0
    assert answers.asked == [{"provider": "hz", "instance_id": "zone/5001"}]
    assert capfd.readouterr().out == "hz/zone/5001 is forgotten; it may still run\n"
    assert machines.forget("hz/zone/5001", json=True) == 0
    assert json.loads(capfd.readouterr().out)["instance_id"] == "zone/5001"
