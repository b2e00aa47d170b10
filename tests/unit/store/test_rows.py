"""No field of the model is forgotten, whether it has a column or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from controller.lifecycle.model import Attempt, Inactivity, Interruption, LimitPause
from controller.store.accounts import User
from controller.store.rows import ATTEMPT, RowCodec
from fairlead.model.starts import Starts


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    size: float
    labels: tuple[str, ...] = ()
    names: frozenset[str] = frozenset({"a"})
    more: dict[str, int] = {}
    owner: User | None = None
    parts: tuple[int, ...] = ()


TABLE = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("id", sa.Text(), primary_key=True),
    sa.Column("owner_id", sa.Text()),
    sa.Column("size", sa.Double()),
    sa.Column("labels", sa.Text(), info={"json": True}),
    sa.Column("rest", sa.Text()),
)
CODEC = RowCodec(Thing, TABLE, without=frozenset({"parts"}))
THING = Thing(id="1", size=2.5, labels=("x",), names=frozenset({"b"}), more={"c": 1})


def test_columns_and_the_rest_make_the_value_again() -> None:
    row = CODEC.row(THING, owner_id="o")

    assert row["id"] == "1"
    assert row["owner_id"] == "o"
    assert row["labels"] == '["x"]'
    assert CODEC.value(row) == THING


def test_parts_that_live_elsewhere_are_given_back_with_the_row() -> None:
    whole = msgspec.structs.replace(THING, parts=(1, 2))
    row = CODEC.row(whole)

    assert "parts" not in row["rest"]
    assert CODEC.value(row, parts=(1, 2)) == whole


def test_a_field_that_did_not_exist_when_the_row_was_written_has_its_default() -> None:
    row = CODEC.row(THING)
    row["rest"] = "{}"

    assert CODEC.value(row).names == frozenset({"a"})


def test_a_text_that_looks_like_something_else_stays_a_text() -> None:
    thing = msgspec.structs.replace(
        THING,
        id="null",
        owner=User(name="1.5", role="admin", created_at=1),  # type: ignore[arg-type]
    )
    value = CODEC.value(CODEC.row(thing))

    assert value.id == "null"
    assert value.owner is not None
    assert value.owner.name == "1.5"


def test_text_that_no_database_takes_is_kept_as_pictures() -> None:
    row = CODEC.row(msgspec.structs.replace(THING, id="a\0b\ud800c"))

    assert CODEC.value(row).id == "a\N{SYMBOL FOR NULL}b?c"


@pytest.mark.parametrize(
    ("changed", "same"),
    [({"size": 2.5}, True), ({"parts": (9,)}, True), ({"more": {"c": 1}}, False)],
)
def test_a_row_is_unchanged_if_all_its_parts_are_the_same_objects(
    changed: dict[str, object], same: bool
) -> None:
    assert CODEC.same(THING, msgspec.structs.replace(THING, **changed)) is same


# Written by the release in which an attempt had all its fields itself.
OLD_ROWS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("attempt_rows.json").read_bytes()
)


def loaded(row: dict[str, Any]) -> Attempt:
    return ATTEMPT.value({**row, "rest": json.dumps(row["rest"])})


@pytest.mark.parametrize("row", OLD_ROWS.values(), ids=OLD_ROWS)
def test_an_attempts_row_stays_as_earlier_releases_wrote_it(row: dict[str, Any]) -> None:
    again = ATTEMPT.row(loaded(row), run_id=row["run_id"])

    assert {**again, "rest": json.loads(again["rest"])} == row


def test_no_field_of_an_attempt_is_lost_between_releases() -> None:
    whole = loaded(OLD_ROWS["full"])

    assert whole.limit_pause == LimitPause(since=109.5, total=2.5)
    assert whole.pull.progressed_at == 102.5
    assert whole.task.runner_socket == "/run/shim.d/a1.sock"
    assert whole.seen.allocation_released
    assert whole.seen.outputs is not None
    assert whole.serving.probes[1].in_a_row == 2
    assert whole.inactivity == Inactivity(since=106.0, seen_at=107.0)
    assert whole.interruption == Interruption(
        requested_at=108.0, ends_at=118.0, paused_since=109.0, report_by=128.0
    )


def test_starts_that_an_earlier_release_wrote_have_neither_an_end_nor_watchers() -> None:
    row = OLD_ROWS["full"]
    before = {**row["rest"], "starts": {"asked": 2, "begun": 1, "refused": None}}

    starts = loaded({**row, "rest": before}).starts

    assert starts == Starts(asked=2, begun=1, ended=None, watchers=None)
    assert (starts.result, starts.watched_until) == (None, None)


def test_an_attempt_that_was_never_interrupted_has_no_interruption() -> None:
    assert loaded(OLD_ROWS["bare"]).interruption is None
