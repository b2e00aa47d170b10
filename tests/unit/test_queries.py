"""Queries as values: what an address may ask, and how one is written into an address."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import msgspec
import pytest

from controller.lifecycle.model import Band
from fairlead.model.statuses import RunStatus
from fairlead.queries import (
    AttemptQuery,
    EventQuery,
    Query,
    QueryError,
    RunQuery,
    SearchQuery,
    WindowQuery,
    parse,
)

ASKED = (
    RunQuery(limit=3, cursor="run1", status="done, failed", user="ada", name="train-*"),
    EventQuery(run="train", after=7, limit=20),
    AttemptQuery(job="main/0", occurrence=2, incarnation="1", cursor="a1"),
    WindowQuery(near=12, rows=5),
    SearchQuery(text="a&b=ü"),
)


@pytest.mark.parametrize("query", ASKED, ids=lambda query: type(query).__name__)
def test_a_query_that_was_written_into_an_address_is_read_again(query: Query) -> None:
    address = urlencode(query.parameters())
    assert parse(dict(parse_qsl(address)), type(query)) == query


def test_an_address_has_nothing_that_is_asked_anyway() -> None:
    assert RunQuery().parameters() == {}


@pytest.mark.parametrize(
    ("shape", "inner"), [(RunQuery, "band"), (EventQuery, "user"), (AttemptQuery, "key")]
)
def test_an_address_sets_no_inner_field(shape: type[Query], inner: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"unknown field `{inner}`"):
        parse({inner: "x"}, shape)


@pytest.mark.parametrize(
    ("given", "shape", "field"),
    [
        ({"status": "done,asleep"}, RunQuery, "status"),
        ({"cursor": "-1"}, EventQuery, "cursor"),
        ({"near": "1", "at": "2026-01-31T12:00:00Z"}, WindowQuery, "at"),
        ({"at": "2026-01-31T12:00:00"}, WindowQuery, "at"),
    ],
)
def test_a_value_that_there_is_not_is_refused_with_its_field(
    given: dict[str, str], shape: type[Query], field: str
) -> None:
    with pytest.raises(QueryError) as refused:
        parse(given, shape)
    assert refused.value.field == field


def test_a_finished_status_asks_for_finished_runs() -> None:
    assert RunQuery(status=RunStatus.DONE).with_finished
    assert not RunQuery(status=RunStatus.RUNNING, band=Band.BATCH).with_finished


def test_old_names_of_cursors_are_known() -> None:
    assert parse({"before": "run1"}, RunQuery).last_known == "run1"
    assert parse({"after": "5"}, EventQuery).last_known == 5
    assert parse({"cursor": "7", "after": "5"}, EventQuery).last_known == 7
