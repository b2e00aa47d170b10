"""Links to a run of wandb or MLflow are found in a job's log, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from fairlead.model.job_links import (
    MAX_BYTES,
    MAX_LINKS,
    JobLink,
    LinkFinder,
    LinkKind,
    links_in,
)

WANDB = "https://wandb.ai/ada/mnist/runs/1a2b3c"


@pytest.mark.parametrize(
    ("line", "kind", "url"),
    [
        (f"wandb: 🚀 View run at {WANDB}", LinkKind.WANDB, WANDB),
        (
            f"wandb: 🚀 View run \x1b[33mcalm-sea-1\x1b[0m at: \x1b[34m{WANDB}\x1b[0m",
            "wandb",
            WANDB,
        ),
        (f"see {WANDB}, please", LinkKind.WANDB, WANDB),
        (f"View run at \x1b[1;38:5:33m\x1b[4m{WANDB}\x1b[0m\x1b[K", LinkKind.WANDB, WANDB),
        (f"\x1b]8;;{WANDB}\x1b\\View run\x1b]8;;\x1b\\", LinkKind.WANDB, WANDB),
        (f"run: \x1b]8;id=7;{WANDB}\x07\x1b[34m{WANDB}\x1b[0m\x1b]8;;\x07.", "wandb", WANDB),
        (
            "View run x at: \x1b]8;;http://ml:5000/#/experiments/0/runs/0f3e\x1b\\here\x1b]8;;\x1b\\",
            LinkKind.MLFLOW,
            "http://ml:5000/#/experiments/0/runs/0f3e",
        ),
        (
            "wandb: View run at http://wandb.lab.example:8080/ada/mnist/runs/x?nw=1",
            LinkKind.WANDB,
            "http://wandb.lab.example:8080/ada/mnist/runs/x?nw=1",
        ),
        (
            "🏃 View run brave-ox-1 at: http://10.0.0.7:5000/#/experiments/0/runs/0f3e",
            LinkKind.MLFLOW,
            "http://10.0.0.7:5000/#/experiments/0/runs/0f3e",
        ),
        (
            "View run x at: https://dbc.example.com/ml/experiments/12/runs/9?o=1",
            LinkKind.MLFLOW,
            "https://dbc.example.com/ml/experiments/12/runs/9?o=1",
        ),
    ],
)
def test_the_forms_that_the_tools_print_are_found(line: str, kind: str, url: str) -> None:
    assert set(links_in(line)) == {JobLink(kind=LinkKind(kind), url=url)}


@pytest.mark.parametrize(
    "line",
    [
        "View run at javascript:alert(1)//a/b/runs/c",
        "View run at file:///a/b/runs/c",
        "View run at \x1b]8;;javascript:alert(1)//a/b/runs/c\x1b\\https://x.example\x1b]8;;\x1b\\",
        "View project at https://wandb.ai/ada/mnist",
        "View run at https://evil.example/",
        "View run at https://wandb.ai@evil.example/a/b/runs/c",
        "View run at https://ada:secret@wandb.example/a/b/runs/c",
        'View run at https://wandb.ai/a/b/runs/c"onclick="x',
        "View run at https://[::1/a/b/runs/c",
        "https://wandb.ai.evil.example/a/b/runs/c",
        "https://example.org/a/b/runs/c",
        "http://wandb.ai/a/b/runs/c",
    ],
)
def test_what_is_no_such_link_is_left_out(line: str) -> None:
    assert list(links_in(line)) == []


def test_a_link_is_found_however_the_log_is_cut_into_pieces() -> None:
    text = f"epoch 1\nwandb: View run at {WANDB}\nepoch 2\n".encode()
    for at in range(len(text)):
        finder = LinkFinder()
        told = [finder.feed(2, text[:at]), finder.feed(1, b"other\n"), finder.feed(2, text[at:])]
        assert finder.found == (JobLink(kind=LinkKind.WANDB, url=WANDB),)
        assert told.count(True) == 1


def test_few_links_are_kept_and_each_once() -> None:
    finder = LinkFinder()
    for number in (1, 1, 2, 3, 4):
        finder.feed(1, f"View run at {WANDB}{number}\n".encode())
    assert [one.url[-1] for one in finder.found] == ["1", "2", "3"]
    assert len(finder.found) == MAX_LINKS
    assert not finder.feed(1, f"View run at {WANDB}9\n".encode())


def test_links_take_no_more_than_their_bytes_together() -> None:
    finder = LinkFinder()
    for letter in "abc":
        finder.feed(1, f"View run at {WANDB}{letter * 900}\n".encode())
    assert sum(len(one.url) for one in finder.found) <= MAX_BYTES
    assert len(finder.found) == 2


def test_lines_without_end_are_not_kept() -> None:
    finder = LinkFinder()
    for _ in range(100):
        assert not finder.feed(1, b"progress\r" * 10_000)
    assert finder.feed(1, f"\nView run at {WANDB}\n".encode())


def test_links_that_are_known_already_are_not_told_again() -> None:
    finder = LinkFinder((JobLink(kind=LinkKind.WANDB, url=WANDB),))
    assert not finder.feed(1, f"View run at {WANDB}\n".encode())
