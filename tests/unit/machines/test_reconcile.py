"""A provider's list against the records."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.machines.life import (
    AccountKnown,
    CallFailed,
    InstanceKnown,
    InstanceLost,
)
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.lifecycle.machines.reconcile import (
    Circumstances,
    Found,
    Reconciled,
    reconcile,
    until_next_list,
)
from tests.unit.machines.parts import NOW, machine

LATER = NOW + 3600.0


def judge(found: list[Found], *machines: Machine, now: float = LATER, **more: Any) -> Reconciled:
    case = Circumstances(provider="lab", **({"visible_after": 60.0} | more))
    return reconcile(found, {one.id: one for one in machines}, case, now)


def listed(instance: str = "i-1", of: str | None = "m1", at: float = NOW) -> Found:
    return Found(instance_id=instance, machine_id=of, created_at=at)


def live(**more: Any) -> Machine:
    return machine(**({"instance_id": "i-1", "status": MachineStatus.JOINED} | more))


def test_a_machine_whose_answer_was_lost_is_adopted() -> None:
    result = judge([listed()], machine())
    assert result.reports == (InstanceKnown(machine_id="m1", instance_id="i-1"),)
    assert result.orphans == ()


def test_a_second_machine_of_one_record_is_a_duplicate() -> None:
    (orphan,) = judge([listed(), listed("i-2")], live()).orphans
    assert (orphan.instance_id, orphan.is_duplicate) == ("i-2", True)
    assert orphan.ends_at() == NOW + 30


def test_an_orphan_that_an_admin_had_ended_waits_for_no_grace() -> None:
    asked = {"i-1", "i-2"}.__contains__
    young, old, kept = judge(
        [listed(at=LATER), listed("i-2"), listed("i-3")], restored_at=LATER, is_to_end=asked
    ).orphans
    assert (young.ends_at(), young.quarantined) == (LATER + 30, False)
    assert (old.ends_at(), old.quarantined) == (NOW + 30, True)
    assert (kept.ends_at(), kept.quarantined) == (None, True)


def test_the_grace_of_an_orphan_goes_on_after_a_restart() -> None:
    found_at = {"i-1": LATER - 400.0}.get
    (orphan,) = judge([listed()], found_at=found_at).orphans
    assert orphan.ends_at() == LATER + 200
    (other,) = judge([listed("i-2")], found_at=found_at).orphans
    assert other.ends_at() == LATER + 600


def test_the_machine_of_a_check_that_is_under_way_is_no_orphan() -> None:
    assert judge([listed()], tried=frozenset({"m1"})).orphans == ()
    assert len(judge([listed()], tried=frozenset({"m2"})).orphans) == 1


def test_a_machine_without_a_record_is_ended_after_the_grace() -> None:
    first = judge([listed()])
    (orphan,) = first.orphans
    assert orphan.ends_at() == LATER + 600
    (again,) = judge([listed()], now=LATER + 60, orphans=first.orphans).orphans
    assert again.ends_at() == LATER + 600


def test_a_young_orphan_is_spared() -> None:
    (orphan,) = judge([listed(at=LATER - 1)]).orphans
    assert orphan.ends_at() is not None
    assert (orphan.ends_at() or 0.0) >= LATER + 29


def test_what_is_older_than_a_restore_is_kept_for_an_admin() -> None:
    (orphan,) = judge([listed()], restored_at=NOW + 1).orphans
    assert orphan.quarantined
    assert orphan.ends_at() is None


def test_a_machine_must_be_missing_from_two_lists() -> None:
    first = judge([], live())
    assert (first.reports, first.missing) == ((), frozenset({"m1"}))
    second = judge([], live(), missing=first.missing)
    assert [type(one) for one in second.reports] == [InstanceLost]


def test_a_young_machine_may_be_missing() -> None:
    young = live(ordered_at=LATER - 59)
    assert judge([], young, missing=frozenset({"m1"})).reports == ()


def test_a_machine_whose_node_answers_is_not_lost() -> None:
    result = judge([], live(), missing=frozenset({"m1"}), answering=frozenset({"m1"}))
    assert result.reports == ()


def test_a_list_says_nothing_of_another_provider() -> None:
    case = Circumstances(provider="other", visible_after=60.0, missing=frozenset({"m1"}))
    assert reconcile([], {"m1": live()}, case, LATER).reports == ()


def test_what_still_runs_after_its_end_is_an_orphan() -> None:
    ended = live(status=MachineStatus.TERMINATED, terminated_at=NOW)
    assert len(judge([listed()], ended).orphans) == 1


def test_the_list_of_another_account_tells_nothing_of_a_machine_but_the_fix() -> None:
    away = live(account="a")
    result = judge([], away, account="b", missing=frozenset({"m1"}))
    (told,) = result.reports
    assert isinstance(told, CallFailed)
    assert told.message == (
        "it is in account a of provider lab, which now uses b: go back to that account until the "
        "machine has ended"
    )
    assert result.missing == frozenset()
    again = judge([], replace(away, trouble=told.message), account="b")
    assert again.reports == ()


def test_a_list_of_an_account_that_is_not_known_tells_nothing_of_a_machine_with_one() -> None:
    result = judge([], live(account="a"), missing=frozenset({"m1"}))
    assert (result.reports, result.missing) == ((), frozenset())


def test_a_machine_is_in_the_account_whose_list_has_it() -> None:
    result = judge([listed()], live(), account="a")
    assert AccountKnown(machine_id="m1", account="a") in result.reports
    assert judge([], live(), account="a").missing == {"m1"}


def test_an_account_that_lists_one_machine_of_another_name_is_that_account() -> None:
    here = live(account="old")
    silent = replace(here, id="m2", instance_id="i-2")
    result = judge([listed()], here, silent, account="new", missing=frozenset({"m2"}))
    assert AccountKnown(machine_id="m2", account="new") in result.reports
    assert [one.machine_id for one in result.reports if isinstance(one, InstanceLost)] == ["m2"]


def test_what_an_operator_did_not_repair_stays_said_and_ends_with_the_repair() -> None:
    said = judge([], live(account="a"), account="b").reports[0]
    assert isinstance(said, CallFailed)
    back = judge([listed()], live(account="a", trouble=said.message), account="a")
    assert AccountKnown(machine_id="m1", account="a") in back.reports
    other = judge([listed()], live(account="a", trouble="500"), account="a")
    assert [type(one) for one in other.reports] == [InstanceKnown]


def test_a_provider_is_asked_again_soon_while_it_lacks_a_machine_that_is_silent() -> None:
    some, none = frozenset({"m1"}), frozenset[str]()
    assert listed_after(some, none, is_urgent=False) == 10.0
    assert listed_after(some, some, is_urgent=False) == 30.0
    assert listed_after(none, some, is_urgent=False) == 30.0
    assert listed_after(none, none, is_urgent=True) == 10.0


def listed_after(
    missing: frozenset[str], answering: frozenset[str], *, is_urgent: bool, took: float = 0.0
) -> float:
    """Return when the list after one at 0 begins, by the steps in which the calls wait."""
    now = took
    while wait := until_next_list(
        0.0, took, now, missing=missing, answering=answering, is_urgent=is_urgent
    ):
        now += wait
    return now


def test_a_list_that_takes_long_puts_the_next_one_off_by_a_pause_only() -> None:
    some, none = frozenset({"m1"}), frozenset[str]()
    assert listed_after(none, none, is_urgent=False, took=10.0) == 30.0
    assert listed_after(some, none, is_urgent=False, took=10.0) == 15.0
    assert listed_after(none, none, is_urgent=False, took=40.0) == 45.0


def noticed_at(vanished_at: float, silent_at: float, took: float) -> float:
    """Return when a machine counts as lost that vanished, and whose node was then taken to be
    silent, while lists begin at 0 and each takes so many seconds."""
    now, missing, machine = 0.0, frozenset[str](), live(ordered_at=-1000.0)
    while True:
        began, now = now, now + took
        answering = frozenset({"m1"}) if now < silent_at else frozenset[str]()
        # What is on a list is read when it begins; what follows is decided when it ends.
        there = [listed()] if began < vanished_at else []
        result = judge(there, machine, missing=missing, answering=answering)
        if any(isinstance(one, InstanceLost) for one in result.reports):
            return now
        missing, ended = result.missing, now
        while wait := until_next_list(
            began,
            ended,
            now,
            missing=missing,
            answering=frozenset({"m1"}) if now < silent_at else frozenset(),
            is_urgent=False,
        ):
            now += wait


@pytest.mark.parametrize("took", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("silence", [0.0, 12.0, 30.0, 40.0])
def test_a_vanished_machine_is_noticed_within_a_minute(took: float, silence: float) -> None:
    """A node is silent after 30 s and the probe that follows (rule 7.2)."""
    waits = [noticed_at(at, at + silence, took) - at for at in (step / 4 for step in range(1, 400))]
    assert max(waits) <= 60.0
    assert min(waits) >= silence
