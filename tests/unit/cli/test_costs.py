"""What `fairlead cost` asks for and prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import settings
from fairlead.cli.commands.nodes import machines
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.model.costs import money, price_words

ROW = {"user": "ada", "fleet": None, "run": "ab", "run_name": "tiny", "hours": 0.001, "cost": 0.004}


class Answers:
    """A controller that tells these costs."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.orphans: dict[str, object] = {}

    def get(self, path: str, **query: object) -> bytes:
        assert path == "/v1/costs"
        self.asked.append(query)
        found = {"rows": [ROW], "total": 0.004, "per_hour": 0.0, "budgets": []}
        return json.dumps(found | {"orphans": self.orphans}).encode()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    found = Answers()
    monkeypatch.setattr(settings, "client", lambda: found)
    return found


def test_a_row_in_csv_is_not_rounded_to_nothing(
    answers: Answers, capfd: pytest.CaptureFixture[str]
) -> None:
    assert machines.cost(by="run,user", csv=True) == 0
    assert capfd.readouterr().out == "run,user,hours,cost\ntiny,ada,0.001000,0.004000\n"
    machines.cost(by="run,user")
    assert capfd.readouterr().out.split() == [
        *("RUN", "USER", "HOURS", "COST"),
        *("tiny", "ada", "0.00", "0.004"),
        *("together", "0.004"),
    ]


def test_a_key_that_is_named_twice_is_shown_once(
    answers: Answers, capfd: pytest.CaptureFixture[str]
) -> None:
    machines.cost(by="user, user", csv=True)
    assert capfd.readouterr().out == "user,hours,cost\nada,0.001000,0.004000\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"since": "0d"}, "--since: '0d' is no time"),
        ({"since": "yesterday"}, "--since: 'yesterday' is not a duration"),
        ({"csv": True, "json": True}, "give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_asked(
    answers: Answers, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(CliError, match=why) as caught:
        machines.cost(**options)
    assert caught.value.exit_status == EXIT_USAGE
    assert not answers.asked


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0.0, "0.00"),
        (0.0035, "0.0035"),
        (0.00000049, "0.00"),
        (0.0000012, "0.000001"),
        (0.1, "0.10"),
        (0.70683, "0.7068"),
        (0.99999, "1.00"),
        (1.0049, "1.00"),
        (1234.5, "1234.50"),
    ],
)
def test_an_amount_has_the_digits_that_it_needs(amount: float, shown: str) -> None:
    assert money(amount) == shown


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        (0.0, "0.00"),
        (98.32, "98.32"),
        (98.324, "98.324"),
        (0.5, "0.50"),
        (1 / 24, "0.041667"),
        (0.1 + 0.2, "0.30"),
        (0.1 * 1.1, "0.11"),
        (1e9, "1000000000.00"),
    ],
)
def test_a_price_is_shown_so_that_it_can_be_a_limit(price: float, shown: str) -> None:
    assert price_words(price) == shown


@pytest.mark.parametrize(
    ("orphans", "told"),
    [
        ({}, ""),
        (
            {"count": 1, "per_hour": 0.3},
            "1 machine without a record costs 0.30 an hour: `fairlead machine orphans`",
        ),
        (
            {"count": 3, "per_hour": 1.5, "without_price": 1},
            "3 machines without a record cost 1.50 an hour, and no budget counts 1 machine whose "
            "price is not known: `fairlead machine orphans`",
        ),
    ],
)
def test_what_machines_without_a_record_cost_is_told(
    answers: Answers, capfd: pytest.CaptureFixture[str], orphans: dict[str, object], told: str
) -> None:
    answers.orphans = orphans
    assert machines.cost() == 0
    assert capfd.readouterr().err.removeprefix("fairlead: ").strip() == told


@pytest.mark.parametrize("tag", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_tag_of_others_is_no_formula_in_a_spreadsheet(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tag: str
) -> None:
    monkeypatch.setitem(ROW, "fleet", f'{tag},"x"')
    assert machines.cost(by="fleet,user", csv=True) == 0
    row = capfd.readouterr().out.splitlines()[1]
    assert row == f'"\'{tag},""x""",ada,0.001000,0.004000'
    monkeypatch.setitem(ROW, "fleet", None)
    assert machines.cost(by="fleet", csv=True) == 0
    assert capfd.readouterr().out.splitlines()[1].startswith("-,")
