"""The causes of events in words."""

from __future__ import annotations

from typing import get_args

import pytest

from controller.lifecycle.events import CAUSES, sentence_of_cause
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.status import RULES

NAMES = [report.__name__ for report in get_args(Report)]
NAMES += [f"rule {number}" for number in range(1, len(RULES) + 1)]


@pytest.mark.parametrize("name", NAMES)
def test_each_report_and_rule_is_a_cause_in_words(name: str) -> None:
    assert sentence_of_cause(name) == CAUSES[name]
    assert CAUSES[name] != name


def test_a_limit_is_named_as_it_is_configured() -> None:
    assert sentence_of_cause("limit max_duration") == "the limit max_duration was reached"


def test_a_sentence_stays_as_it_is() -> None:
    assert sentence_of_cause("submitted by ada") == "submitted by ada"
