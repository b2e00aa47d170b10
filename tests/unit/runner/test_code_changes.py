"""What changes between two versions of a job's code. Pure."""

from __future__ import annotations

from typing import Any

from fairlead.wire.job import CodeChanges, Files, Repo, code_changes, why_not_in_place


def files(path: str, archive: str) -> Files:
    return Files(path=path, archive=archive)


def fetched(**more: Any) -> Repo:
    return Repo(**{"path": "repo", "url": "https://x/y", "commit": "a" * 40, **more})


def test_an_unchanged_folder_is_neither_sent_nor_touched() -> None:
    before = ((), (files("a", "1"), files("b", "2")))
    after = ((), (files("a", "3"), files("b", "2")))
    changes = code_changes(before, after)
    assert changes == CodeChanges(removed=(files("a", "1"),), files=(files("a", "3"),))
    assert changes.blobs == ("3",)
    assert code_changes(before, before) == CodeChanges()


def test_a_folder_of_several_archives_is_one_thing_whose_order_counts() -> None:
    before = ((), (files(".", "1"), files(".", "2")))
    after = ((), (files(".", "2"), files(".", "1")))
    assert code_changes(before, after).blobs == ("2", "1")


def test_the_changes_of_a_repository_are_taken_back_first_and_files_come_over_it() -> None:
    one, two, over = fetched(diff="1"), fetched(diff="2"), (files("repo/x", "f"),)
    changes = code_changes(((one,), over), ((two,), over))
    assert (changes.repos, changes.removed, changes.files) == (((one, two),), over, over)
    assert changes.blobs == ("1", "2", "f")
    assert code_changes(((one,), ()), ((fetched(),), ())).blobs == ("1",)


def test_what_must_be_fetched_or_lies_elsewhere_does_not_change_in_place() -> None:
    one = fetched(diff="1")
    assert why_not_in_place(((one,), ()), ((fetched(diff="2"),), ())) is None
    for other in (fetched(commit="b" * 40), fetched(url="https://x/z"), fetched(branch="main")):
        assert "another commit" in (why_not_in_place(((one,), ()), ((other,), ())) or "")
    packed = Repo(path="repo", archive="1")
    assert why_not_in_place(((packed,), ()), ((Repo(path="repo", archive="2"),), ())) is None
    assert why_not_in_place(((packed,), ()), ((one,), ())) is not None
    assert "other folders" in (why_not_in_place(((one,), ()), ((), ())) or "")
    assert "other folders" in (why_not_in_place(((), (files("a", "1"),)), ((), ())) or "")
