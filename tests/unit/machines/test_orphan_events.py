"""What users are told of machines that no record knows."""

from __future__ import annotations

from typing import Any

from controller.api.runs.events import event_view
from controller.lifecycle.events import Event
from controller.lifecycle.machines.reconcile import Orphan
from controller.lifecycle.orphan_events import OrphanBook
from controller.store.base import StoredEvent
from controller.web.pages.events import event_row
from tests.unit.machines.parts import NOW


def orphan(name: str = "i-1", **more: Any) -> Orphan:
    fields: dict[str, Any] = {"machine_id": None, "created_at": NOW, "seen_at": NOW}
    return Orphan(provider="lab", instance_id=name, **(fields | more))


def told(events: tuple[Event, ...]) -> list[tuple[str | None, str | None, str | None]]:
    return [(one.reason, one.from_status, one.to_status) for one in events]


def test_each_change_of_an_orphan_is_told_once() -> None:
    book = OrphanBook()
    assert book.listed("lab", [orphan()])
    assert told(book.offer(NOW)) == [("lab/i-1", None, "found")]
    book.committed()
    assert not book.listed("lab", [orphan()])
    assert book.offer(NOW) == ()
    assert book.listed("lab", [orphan(quarantined=True)])
    assert told(book.offer(NOW)) == [("lab/i-1", "found", "kept")]
    book.committed()
    assert book.listed("lab", [])
    assert told(book.offer(NOW)) == [("lab/i-1", "kept", "gone")]
    book.committed()
    assert not book.listed("lab", [])


def test_a_later_controller_knows_when_an_orphan_was_found() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan()])
    book.offer(NOW)
    assert book.found_at("lab", "i-1") is None
    book.committed()
    book.listed("lab", [orphan(quarantined=True)])
    book.offer(NOW + 60.0)
    book.committed()
    later = OrphanBook(book.there)
    assert later.found_at("lab", "i-1") == NOW
    assert later.found_at("lab", "i-2") is None
    later.listed("lab", [])
    later.offer(NOW + 90.0)
    later.committed()
    assert later.found_at("lab", "i-1") is None


def test_who_had_an_orphan_ended_is_told_once_and_outlasts_controllers() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan(quarantined=True)])
    book.offer(NOW)
    book.committed()
    book.ask_for_end("lab", ["i-1"], "ada")
    assert not book.is_to_end("lab", "i-1")  # Until it is committed, nobody may act on it.
    ending = book.offer(NOW + 1.0)
    assert told(ending) == [("lab/i-1", "kept", "ending")]
    assert ending[0].cause == "ada had it ended"
    assert book.offer(NOW + 2.0) != ()  # The commit may have failed.
    book.committed()
    assert book.is_to_end("lab", "i-1")
    book.ask_for_end("lab", ["i-1"], "bob")
    assert book.offer(NOW + 3.0) == ()
    later = OrphanBook(book.there)
    assert later.is_to_end("lab", "i-1")
    assert not later.listed("lab", [orphan(quarantined=True)])
    assert later.listed("lab", [])
    assert told(later.offer(NOW + 4.0)) == [("lab/i-1", "ending", "gone")]
    later.committed()
    assert not later.is_to_end("lab", "i-1")


def test_the_end_of_what_is_gone_meanwhile_is_asked_of_nothing_that_comes_later() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan()])
    book.offer(NOW)
    book.committed()
    book.ask_for_end("lab", ["i-1"], "ada")
    book.listed("lab", [])
    assert told(book.offer(NOW)) == [("lab/i-1", "found", "gone")]
    book.committed()
    book.listed("lab", [orphan(quarantined=True)])
    assert told(book.offer(NOW)) == [("lab/i-1", None, "kept")]


def test_an_end_that_the_database_refuses_is_not_asked_for() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan(quarantined=True)])
    book.ask_for_end("lab", ["i-1"], "ada")
    assert told(book.offer(NOW)) == [("lab/i-1", None, "ending")]
    book.refused()
    assert not book.is_to_end("lab", "i-1")
    assert told(book.offer(NOW)) == [("lab/i-1", None, "kept")]
    book.refused()
    assert book.offer(NOW) == ()


def test_what_was_not_committed_is_offered_again() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan()])
    first = book.offer(NOW)
    assert book.offer(NOW) == first != ()


def test_the_list_of_one_provider_tells_nothing_of_anothers_orphans() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan("zone/i-1")])
    book.offer(NOW)
    book.committed()
    assert not book.listed("other", [])


def test_a_list_of_another_account_tells_nothing_of_an_orphan() -> None:
    book = OrphanBook()
    kept = orphan(quarantined=True)
    book.listed("lab", [kept], "ours")
    book.ask_for_end("lab", ["i-1"], "ada")
    book.offer(NOW)
    book.committed()
    for account in ("theirs", None):
        assert not OrphanBook(book.there).listed("lab", [], account)
        assert not book.listed("lab", [], account)
        assert book.offer(NOW) == ()
    # Its account has another name now, and the list of that lacks it then.
    assert not book.listed("lab", [kept], "renamed")
    assert book.offer(NOW) == ()
    book.committed()
    assert book.is_to_end("lab", "i-1")
    assert book.listed("lab", [], "renamed")
    assert told(book.offer(NOW)) == [("lab/i-1", "ending", "gone")]


def test_a_second_machine_of_a_record_is_told_as_such() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan(is_duplicate=True)])
    (event,) = book.offer(NOW)
    assert event.message == "its record has another machine, so it is ended"


def test_users_read_what_the_orphan_is_and_not_of_which_run() -> None:
    book = OrphanBook()
    book.listed("lab", [orphan()])
    (event,) = book.offer(NOW)
    row = event_row(event_view(StoredEvent(seq=1, event=event)), {})
    assert row.run_id is None
    assert (row.what, row.reason) == ("orphan: found", "lab/i-1: it is ended after 10 min")
