"""What `fairlead provider check` and `fairlead offers` print, and their exit status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import settings
from fairlead.cli.commands.nodes import providers
from fairlead.cli.errors import CliError

FINE = {"what": "credentials and 3 offers", "fault": None, "note": None}
NOTE = {"what": "quota of P", "fault": None, "note": "0 vCPUs"}
WRONG = {"what": "image ami-1", "fault": "there is no image ami-1", "note": None}


class Answers:
    """A controller with planned answers, by method and path."""

    def __init__(self, findings: list[dict[str, Any]], *trials: dict[str, Any]) -> None:
        self.findings = findings
        self.trials = list(trials)
        self.asked: list[tuple[str, object]] = []

    def post(self, path: str, body: object) -> bytes:
        self.asked.append((path, body))
        if path.endswith("/check"):
            return json.dumps({"findings": self.findings}).encode()
        return self.get(path)

    def get(self, path: str) -> bytes:
        return json.dumps(self.trials.pop(0)).encode()


def checked(
    monkeypatch: pytest.MonkeyPatch, answers: Answers, **options: Any
) -> tuple[int, Answers]:
    monkeypatch.setattr(providers, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(settings, "client", lambda: answers)
    return providers.check("aws-eu", **options), answers


def trial(*steps: str, **more: Any) -> Mapping[str, Any]:
    return {"steps": steps, "fault": None, "is_over": False} | more


def test_what_works_and_what_is_only_a_note_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, answers = checked(monkeypatch, Answers([FINE, NOTE]))
    assert (status, answers.asked) == (0, [("/v1/providers/aws-eu/check", {})])
    assert capfd.readouterr().out.splitlines() == [
        "ok    credentials and 3 offers",
        "note  quota of P: 0 vCPUs",
    ]


def test_a_fault_is_a_failure_and_makes_no_machine(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, answers = checked(monkeypatch, Answers([WRONG]), boot=True)
    assert (status, len(answers.asked)) == (1, 1)
    assert capfd.readouterr().out == "FAIL  image ami-1: there is no image ami-1\n"


def test_each_step_of_a_machine_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = [trial("ordered"), trial("ordered", "booted"), trial("ordered", "booted", is_over=True)]
    answers = Answers([FINE], *map(dict, steps))
    status, _ = checked(monkeypatch, answers, boot=True, instance_type="g6.xlarge")
    assert status == 0
    assert answers.asked[1] == ("/v1/providers/aws-eu/trial", {"instance_type": "g6.xlarge"})
    assert capfd.readouterr().out.splitlines()[1:] == ["ok    ordered", "ok    booted"]


def test_a_type_without_a_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CliError, match="--instance-type is of the machine that --boot makes"):
        checked(monkeypatch, Answers([FINE]), instance_type="g6.xlarge")


def test_a_machine_that_failed_is_in_the_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = dict(trial("ordered", fault="it had no address", is_over=True))
    status, _ = checked(monkeypatch, Answers([FINE], ended), boot=True, json=True)
    assert status == 1
    found = json.loads(capfd.readouterr().out)["findings"]
    assert [one["what"] for one in found] == ["credentials and 3 offers", "ordered", "a machine"]
    assert found[-1]["fault"] == "it had no address"


def offered(source: str, read_at: str | None, *notes: str) -> dict[str, Any]:
    plain = {
        "instance_type": "g2-standard-4",
        "region": "us-central1",
        "zone": "us-central1-a",
        "spot": False,
        "price": 0.70683,
        "cpu": 4.0,
        "memory": 16_000_000_000,
        "disk": 90_000_000_000,
        "gpu": "NVIDIA L4:1",
    }
    spot = plain | {"spot": True, "price": 0.28}
    reserved = plain | {"price": 0.00001234, "reservation": "res-1"}
    offers = [plain, spot, reserved]
    return {"source": source, "read_at": read_at, "notes": notes, "offers": offers}


def test_offers_are_listed_with_the_age_of_their_prices(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read_at = (datetime.now(UTC) - timedelta(days=3, hours=1)).isoformat()
    told = offered("api", read_at, "odd")
    monkeypatch.setattr(settings, "client", lambda: Answers([], told))
    assert providers.offers_list("gcp-us") == 0
    *table, source, note = capfd.readouterr().out.splitlines()
    assert [one.split() for one in table] == [
        ["TYPE", "WHERE", "KIND", "PRICE/H", "CPU", "MEMORY", "GPU"],
        ["g2-standard-4", "us-central1-a", "-", "0.70683", "4", "16.0GB", "NVIDIA", "L4:1"],
        ["g2-standard-4", "us-central1-a", "spot", "0.28", "4", "16.0GB", "NVIDIA", "L4:1"],
        [
            *["g2-standard-4", "us-central1-a", "reserved", "as", "res-1"],
            *["0.000013", "4", "16.0GB", "NVIDIA", "L4:1"],
        ],
    ]
    assert (source, note) == ("prices: read from the API 3d ago", "note  odd")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("release", "of the release; they were never read from the API"),
        ("provider", "the provider tells them each time"),
    ],
)
def test_a_refresh_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], source: str, words: str
) -> None:
    answers = Answers([], offered(source, None, "odd"))
    monkeypatch.setattr(settings, "client", lambda: answers)
    assert providers.offers_refresh("gcp-us") == 0
    assert answers.asked == [("/v1/providers/gcp-us/offers/refresh", {})]
    assert capfd.readouterr().out.splitlines() == [
        f"3 offers of 1 types; prices: {words}",
        "note  odd",
    ]


def test_an_empty_name_is_named() -> None:
    for command in (providers.check, providers.offers_list, providers.offers_refresh):
        with pytest.raises(CliError, match="NAME is empty: give a provider's name"):
            command("")
