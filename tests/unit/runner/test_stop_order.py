"""The grace that who stops a container leaves its job, from a file that the job could replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.job.execution import grace_left


def test_the_remaining_grace_is_told_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_text('{"kill_at": 130.0}')
    assert [grace_left(tmp_path, now) for now in (100.0, 130.0, 200.0)] == [30.0, 0.0, 0.0]


def test_without_a_word_there_is_no_limit(tmp_path: Path) -> None:
    assert grace_left(tmp_path, 0.0) is None


@pytest.mark.parametrize("content", ["", "{", "{}", '{"kill_at": "soon"}', " " * 5000])
def test_a_malformed_stop_order_gives_no_grace(tmp_path: Path, content: str) -> None:
    (tmp_path / "stop.json").write_text(content)
    assert grace_left(tmp_path, 0.0) is None


def test_a_pipe_is_not_waited_for_and_a_link_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stop.json")
    assert grace_left(tmp_path, 0.0) is None
    (tmp_path / "other").write_text('{"kill_at": 130.0}')
    (tmp_path / "stop.json").unlink()
    (tmp_path / "stop.json").symlink_to("other")
    assert grace_left(tmp_path, 0.0) is None
