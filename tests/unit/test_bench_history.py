"""The figures of the releases: what is told to be worse, and that the page shows them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import history
from bench.history import KINDS, Release

OLD = Release(version="0.9.0", measured_at="2026-01-01", machine="old", figures={"scale.gang": 1.0})
NEW = Release(
    version="0.10.0",
    measured_at="2026-02-01",
    machine="new",
    figures={"scale.gang": 2.0, "scale.commits": 1000.0},
)


@pytest.mark.parametrize(
    ("now", "is_told"),
    [
        ({"scale.gang": 2.19}, False),
        ({"scale.gang": 2.21}, True),
        ({"scale.gang": 0.1}, False),
        ({"scale.commits": 910.0}, False),
        ({"scale.commits": 900.0}, True),
        ({"scale.commits": 9000.0}, False),
        ({"memory.shim": 1.0}, False),
    ],
)
def test_what_is_worse_by_more_than_a_tenth_is_told(now: dict[str, float], is_told: bool) -> None:
    assert bool(history.worse(NEW.figures, now)) is is_told


def test_figures_are_compared_with_the_last_release_by_its_number(tmp_path: Path) -> None:
    for one in (NEW, OLD):
        history.with_figures(one, tmp_path)
    known = history.releases(tmp_path)
    assert known == [OLD, NEW]
    shown = history.comparison({"scale.gang": 3.0}, known)
    assert "Beside 0.10.0 (new)" in shown
    assert "3.0 s instead of 2.00 s, worse by 50%" in shown


def test_another_bench_adds_its_figures_to_the_release(tmp_path: Path) -> None:
    history.with_figures(NEW, tmp_path)
    history.with_figures(
        Release(version="0.10.0", measured_at="x", machine="y", figures={"memory.shim": 5.0}),
        tmp_path,
    )
    (found,) = history.releases(tmp_path)
    assert found.figures == {**NEW.figures, "memory.shim": 5.0}


def test_without_a_release_nothing_is_compared() -> None:
    assert "no release" in history.comparison({"memory.shim": 1.0}, [])


def test_releases_have_known_figures_alone() -> None:
    names = {kind.name for kind in KINDS}
    assert all(one.figures.keys() <= names for one in history.releases())


def test_the_page_shows_the_releases() -> None:
    """If this fails, run `./dev pages`."""
    text = history.PAGE.read_text(encoding="utf-8")
    assert history.page(text) == text
