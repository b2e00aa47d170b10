"""`apply --watch`: a change of the file or of its code starts the run again."""

from __future__ import annotations

import threading
from pathlib import Path

from fairlead.cli.commands.runs import watching
from fairlead.cli.commands.runs.watching import wait_for_change
from fairlead.errors import UsageError
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of

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
    await command.hears("its code has changed: train starts again")
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


def waits(looks: Looks, told: list[str]) -> bool:
    return wait_for_change(looks, b"old", looks.ended, told.append)


def test_a_change_counts_once_it_is_seen_twice() -> None:
    told: list[str] = []
    assert waits(Looks(b"old", b"half", b"new", b"new", b"-"), told)
    assert not waits(Looks(b"old", b"half", b"old", b"old"), told)
    assert told == []


def test_a_look_that_fails_is_told_once_and_tried_again() -> None:
    told: list[str] = []
    wrong = UsageError("line 3: no")
    assert waits(Looks(wrong, wrong, b"new", b"new", b"-"), told)
    assert told == ["line 3: no"]
    assert watching.POLL_SECONDS < 1
