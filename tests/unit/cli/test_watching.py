"""`apply --watch`: a change of the file or of its code starts the run again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from fairlead.cli.commands.runs import watching
from fairlead.cli.commands.runs.watching import (
    Attachment,
    Iterations,
    NotInPlace,
    Submitted,
    Watched,
    as_seen,
    pause_after,
    until_begun,
    wait_for_change,
)
from fairlead.documents.runs import RunView
from fairlead.errors import ConnectionLost, UsageError, api_error
from fairlead.model.starts import Starts
from fairlead.model.statuses import RunStatus
from fairlead.rest import ControllerClient
from tests.support.git_server import commit, git
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of
from tests.unit.cli.test_dev_environments import read
from tests.unit.lifecycle.play import Play

LIVE = read(Play().state)
TASK = "type: task\nname: train\nimage: busybox\ncommands: [cat code/a.py]\nfiles: ['code:code']\n"


async def test_a_change_of_code_replaces_the_run_and_a_wrong_file_does_not(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    code = tmp_path / "code" / "a.py"
    code.parent.mkdir()
    code.write_text("one")
    file = tmp_path / "train.yaml"
    file.write_text(TASK)
    command = await start("apply", "--watch", str(file))
    await command.hears("submitted train; a change of its code starts it again")
    code.write_text("two")
    await command.hears("code/a.py changed: train starts again")
    command.said = ""
    await command.hears("submitted train")
    file.write_text(TASK + "comands: []\n")
    await command.hears("comands: is not a field")
    file.write_text(TASK)
    await node.runs("train")
    await node.prints("train", b"two\n")
    await node.ends("train", 0)
    await command.hears("train: done")
    await command.hears("waiting for a change of its code")
    listed = await of(start, "ps", "-a")
    assert listed.out.count(b"train ") == 2
    command.interrupt()
    ended = await command.ended()
    assert (ended.status, ended.out) == (130, b"two\n")


async def test_a_run_is_followed_further_when_the_controller_refuses_its_successor(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    file = tmp_path / "train.yaml"
    file.write_text(TASK)
    command = await start("apply", "--watch", str(file))
    await command.hears("submitted train")
    await node.runs("train")
    file.write_text(TASK + "after: [nobody]\n")
    await command.hears("train was not started again")
    await node.prints("train", b"goes on\n")
    await command.prints(b"goes on\n")
    await node.ends("train", 0)
    await command.hears("train: done")
    await command.hears("waiting for a change of its code")
    command.said = ""
    file.write_text(TASK)
    await command.hears("submitted train; ")
    command.interrupt()
    assert (await command.ended()).status == 130


async def test_ctrl_c_while_the_old_run_is_being_stopped_starts_no_other(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    file = tmp_path / "train.yaml"
    file.write_text(TASK)
    command = await start("apply", "--watch", str(file))
    await command.hears("submitted train")
    await node.runs("train")
    file.write_text(TASK.replace("busybox", "alpine"))
    await command.hears("train gets a new container: ")
    await command.hears("its image has changed")
    await command.hears("is being stopped; waiting for its end")
    command.interrupt()
    ended = await command.ended()
    assert (ended.status, "it does not start again" in ended.err) == (130, True)


async def test_what_cannot_be_watched_is_refused(start: Fairlead, tmp_path: Path) -> None:
    nightly = tmp_path / "nightly.yaml"
    nightly.write_text("type: task\ncommands: [x]\nschedule: '0 3 * * *'\n")
    for words in (
        ("-",),
        (str(nightly),),
        (str(nightly), "-d"),
        ("-f", str(nightly), "-f", str(nightly)),
    ):
        refused = await of(start, "apply", "--watch", *words)
        assert (refused.status, "--watch" in refused.err) == (2, True), refused.err


class Looks:
    """What each look sees; after the last one nobody waits any more."""

    def __init__(self, *seen: bytes | Exception) -> None:
        self._seen = list(seen)
        self.ended = threading.Event()

    def __call__(self) -> bytes:
        now = self._seen.pop(0)
        if not self._seen:
            self.ended.set()
        if isinstance(now, Exception):
            raise now
        return now


def waits(looks: Looks, told: list[str]) -> bytes | None:
    return wait_for_change(looks, b"old", looks.ended, told.append)


def test_a_change_counts_once_it_is_seen_twice() -> None:
    told: list[str] = []
    assert waits(Looks(b"old", b"half", b"new", b"new", b"-"), told) == b"new"
    assert waits(Looks(b"old", b"half", b"old", b"old"), told) is None
    assert told == []


def test_a_look_that_fails_twice_is_told_once_and_tried_again() -> None:
    told: list[str] = []
    wrong = UsageError("line 3: no")
    assert waits(Looks(wrong, wrong, wrong, b"new", b"new", b"-"), told) == b"new"
    assert told == ["line 3: no"]
    assert watching.POLL_SECONDS < 1


def test_a_file_that_is_away_for_one_look_is_not_told_and_starts_nothing() -> None:
    told: list[str] = []
    away = UsageError("a.py can't be read")
    assert waits(Looks(away, b"old", away, b"old", b"-"), told) is None
    assert waits(Looks(b"new", away, b"new", b"-"), told) is None
    assert told == []


def test_looks_at_large_code_are_rare_and_a_change_of_it_is_confirmed_soon() -> None:
    assert pause_after(0.01, changed=False) == watching.POLL_SECONDS
    assert pause_after(5.0, changed=False) == pytest.approx(45.0)
    assert pause_after(0.01, changed=True) == watching.SETTLE_SECONDS
    assert pause_after(5.0, changed=True) == pytest.approx(5.0)


class _Stored:
    """A controller that has each upload already."""

    def has_upload(self, _: str) -> bool:
        return True


@pytest.mark.parametrize("is_repository", [False, True])
def test_a_look_sees_what_is_sent_and_nothing_that_only_a_tool_left(
    tmp_path: Path, is_repository: bool
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("one")
    if is_repository:
        git(code, "init", "-q")
        commit(code)
    file = tmp_path / "train.yaml"
    file.write_text(TASK)
    watched = Watched(file, (), ())

    def sent() -> bytes:
        return as_seen(watched.sent(cast(ControllerClient, _Stored())))

    first = sent()
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "a.cpython-311.pyc").write_text("")
    for name in (".a.py.swp", "a.py~", "#a.py#"):
        (code / name).write_text("")
    (code / ".#a.py").symlink_to("ada@here.1:1")
    assert watched.look() == sent() == first
    (code / "b.py").write_text("two")
    assert watched.look() == sent() != first
    (code / "b.py").unlink()
    assert watched.look() == first


class Played:
    """One `--watch` by a script: `finds` is what is there each time the run is followed, after the
    last one comes a Ctrl-C; `answers` are what comes of each submission, `in_place` of each start
    in the same container, of which all others are impossible."""

    def __init__(
        self,
        finds: list[bytes],
        answers: list[bytes | Exception],
        in_place: list[bytes | Exception] | None = None,
    ) -> None:
        self._finds = finds
        self._in_place = in_place or []
        self._answers = answers
        self._now = b"one"
        self.events: list[str] = []
        self.told: list[str] = []
        self.iterations = Iterations(
            look=lambda: self._now,
            submit=self._submit,
            start_again=self._start_again,
            attach=self._attach,
            tell=self.told.append,
        )

    def goes_on(self) -> list[str]:
        with pytest.raises(KeyboardInterrupt):
            self.iterations.go_on()
        return self.events

    def finds_next(self) -> None:
        if not self._finds:
            raise KeyboardInterrupt
        self._now = self._finds.pop(0)

    def _submit(self, replaced: str | None) -> Submitted:
        self.events.append("submits" if replaced is None else f"replaces {replaced}")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Submitted(run=LIVE, seen=answer)

    def _start_again(self, run: RunView) -> Submitted:
        if not self._in_place:
            raise NotInPlace("it is played")
        self.events.append(f"starts {run.name} again")
        answer = self._in_place.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Submitted(run=LIVE, seen=answer, in_place=True)

    def _attach(self, _: RunView) -> Attachment:
        return _Followed(self)


class _Followed:
    def __init__(self, played: Played) -> None:
        self._played = played

    def until_final(self, until: Callable[[threading.Event], bool]) -> RunView:
        self._played.events.append("follows")
        self._played.finds_next()
        assert until(threading.Event())
        return LIVE

    def close(self) -> None:
        self._played.events.append("closes")


@pytest.fixture
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(watching, "SETTLE_SECONDS", 0.0)


looks_at_once = pytest.mark.usefixtures("_looks_at_once")


@looks_at_once
def test_a_refused_change_leaves_the_run_followed_until_the_next_change() -> None:
    refused = api_error(400, "invalid", "no run nope", "after[0].run")
    played = Played([b"two", b"three"], [b"one", refused, b"three"])
    assert played.goes_on() == [
        *("submits", "follows"),
        *("replaces play", "follows"),
        *("replaces play", "closes", "follows"),
    ]
    assert "after[0].run: no run nope; play was not started again" in played.told


@looks_at_once
def test_what_vanished_while_it_was_read_is_tried_again_even_as_it_was_before() -> None:
    vanished = UsageError("code/a.py can't be read: No such file or directory")
    played = Played([b"two", b"one"], [b"one", vanished, b"one"])
    assert played.goes_on()[2:] == [
        *("replaces play", "follows"),
        *("replaces play", "closes", "follows"),
    ]


@looks_at_once
def test_a_change_while_the_controller_is_away_is_sent_when_it_is_back() -> None:
    played = Played([b"two"], [b"one", ConnectionLost("it is away"), b"two"])
    assert played.goes_on()[2:] == ["replaces play", "replaces play", "closes", "follows"]
    assert played.told[-3:] == [
        "play gets a new container: it is played",
        "the controller is back",
        "submitted play; a change of its code starts it again",
    ]


@looks_at_once
def test_a_change_while_it_was_sent_starts_it_again() -> None:
    played = Played([b"two", b"two"], [b"one", b"half of two", b"two"])
    assert played.goes_on().count("replaces play") == 2


def test_the_first_submission_is_not_tried_again() -> None:
    played = Played([], [ConnectionLost("nothing listens there", refused=True)])
    with pytest.raises(ConnectionLost):
        played.iterations.go_on()
    assert played.events == ["submits"]


@looks_at_once
def test_a_start_in_the_same_container_is_followed_further_without_a_new_run() -> None:
    away = ConnectionLost("it is away")
    played = Played([b"two", b"three"], [b"one"], in_place=[away, b"two", b"three"])
    assert played.goes_on() == [
        *("submits", "follows"),
        *("starts play again", "starts play again", "follows"),
        *("starts play again", "follows"),
    ]


@looks_at_once
def test_a_start_that_needs_a_new_container_says_why_and_replaces_the_run() -> None:
    played = Played([b"two"], [b"one", b"two"], in_place=[NotInPlace("its image has changed")])
    assert played.goes_on()[2:] == ["starts play again", "replaces play", "closes", "follows"]
    assert "play gets a new container: its image has changed" in played.told


def seen_with(starts: Starts | None, status: RunStatus = RunStatus.RUNNING) -> RunView:
    job = LIVE.jobs[0]
    attempt = replace(job.attempts[-1], starts=starts)
    return replace(LIVE, status=status, jobs=(replace(job, attempts=(attempt,)),))


def test_a_start_is_waited_for_until_it_has_begun_or_never_will() -> None:
    owed, begun = Starts(asked=2, begun=1), Starts(asked=2, begun=2)
    assert until_begun([seen_with(owed), seen_with(begun)]) == seen_with(begun)
    with pytest.raises(NotInPlace, match="no git"):
        until_begun([seen_with(owed), seen_with(Starts(asked=2, refused="no git"))])
    with pytest.raises(NotInPlace, match="its container has ended"):
        until_begun([seen_with(owed), seen_with(owed, RunStatus.FAILED)])
    with pytest.raises(NotInPlace, match="its container has ended"):
        until_begun([seen_with(None)])
