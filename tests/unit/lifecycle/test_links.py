"""Links that a job printed are kept with its attempt: the first few (docs/rules.md 9.3)."""

from __future__ import annotations

from controller.lifecycle.reports import LinksFound
from fairlead.model.job_links import MAX_LINKS, JobLink, LinkKind
from tests.unit.lifecycle.play import Play


def link(number: int) -> JobLink:
    return JobLink(kind=LinkKind.MLFLOW, url=f"http://m/#/experiments/0/runs/{number}")


def found(play: Play, *numbers: int) -> LinksFound:
    links = tuple(link(number) for number in numbers)
    return LinksFound(run_id=play.run_id, attempt_id=play.attempt().id, links=links)


def test_the_first_links_are_kept_in_their_order_and_each_once() -> None:
    play = Play().send().to_running()
    play.send(found(play, 1))
    before = play.state
    play.send(found(play, 1))
    assert play.state is before
    play.send(found(play, 1, 2, 3, 4))
    assert play.attempt().links == tuple(link(number) for number in (1, 2, 3))
    assert len(play.attempt().links) == MAX_LINKS
