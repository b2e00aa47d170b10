"""The performer that has a runner start its job again (docs/rules.md 2.15)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import Report
from controller.pipelines.performers.starting_again import StarterAgain
from controller.pipelines.to_node import RetryLater
from controller.store.errors import StoreUnavailable
from fairlead.model.starts import Starts
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.runner import AgainAnswer
from runner.client import RunnerError
from tests.doubles.node import FakeConnection
from tests.doubles.secrets import NO_SECRETS
from tests.unit.pipelines.parts import NotedPipeline, context_of, placed

DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
"""Of the bytes `foo`."""


class Committing(NotedPipeline):
    """Takes each report over at once."""

    def post(self, report: Report) -> None:
        super().post(report)
        (state,) = self.runs.values()
        if isinstance(report, reports.StartedAgain):
            starts = Starts(asked=report.number, begun=report.number)
        else:
            assert isinstance(report, reports.StartAgainRefused)
            starts = Starts(asked=report.number, refused=report.message)
        self.restore((with_starts(state, starts),), ())

    async def settled(self) -> None:
        """Everything is decided."""


def with_starts(state: RunState, starts: Starts) -> RunState:
    (job,) = state.jobs
    attempt = replace(job.attempts[0], starts=starts)
    return replace(state, jobs=(replace(job, attempts=(attempt,)),))


def asked(number: int = 1) -> RunState:
    return with_starts(placed(AttemptStatus.RUNNING), Starts(asked=number))


async def perform(state: RunState, node: FakeConnection, folder: Path) -> list[Report]:
    pipeline = Committing(state)
    await StarterAgain(pipeline, BlobStore(folder), NO_SECRETS)(context_of(state), node)
    return pipeline.posted


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_what_is_missing_is_sent_and_the_start_is_reported_once_it_has_begun(
    node: FakeConnection, tmp_path: Path
) -> None:
    await BlobStore(tmp_path).put(DIGEST, _pieces(b"foo"), user="ann")
    runner = node.the_runner
    state = asked(3)
    runner.again_answers = [AgainAnswer(missing=(DIGEST,)), AgainAnswer(), AgainAnswer(begun=True)]
    (report,) = await perform(state, node, tmp_path)
    assert isinstance(report, reports.StartedAgain)
    assert (report.number, runner.code) == (3, {DIGEST: b"foo"})
    assert {one.number for one in runner.agains} == {3}


async def test_an_upload_that_is_gone_and_a_runners_refusal_are_reported(
    node: FakeConnection, tmp_path: Path
) -> None:
    node.the_runner.again_answers = [AgainAnswer(missing=(DIGEST,))]
    (gone,) = await perform(asked(), node, tmp_path)
    assert isinstance(gone, reports.StartAgainRefused)
    assert gone.message == "an upload that it needs is gone"
    for error, said in (
        (RunnerError("not_in_place", "another commit", 409), "another commit"),
        (RunnerError("not_found", "no such path", 404), "an older version"),
    ):
        node.the_runner.failures = [error]
        (refused,) = await perform(asked(), node, tmp_path)
        assert isinstance(refused, reports.StartAgainRefused)
        assert said in refused.message


async def test_a_runner_that_fails_is_asked_again(node: FakeConnection, tmp_path: Path) -> None:
    node.the_runner.failures = [RunnerError("bad_answer", "broken", 502)]
    with pytest.raises(RetryLater, match="broken"):
        await perform(asked(), node, tmp_path)


async def test_a_store_that_is_away_is_waited_for(node: FakeConnection, tmp_path: Path) -> None:
    class Away(Committing):
        async def settled(self) -> None:
            raise StoreUnavailable("the disk is full")

    node.the_runner.again_answers = [AgainAnswer(begun=True)]
    state = asked()
    with pytest.raises(RetryLater, match="the disk is full"):
        await StarterAgain(Away(state), BlobStore(tmp_path), NO_SECRETS)(context_of(state), node)


class Refusing(Committing):
    """Its store refuses the run, so no report of it is ever committed."""

    def post(self, report: Report) -> None:
        NotedPipeline.post(self, report)


@pytest.mark.parametrize(
    ("answers", "posted"),
    [
        ([AgainAnswer(begun=True)] * 9, 2),
        # A job that impersonates its runner.
        ([AgainAnswer()] * 9, 0),
        ([AgainAnswer(missing=(DIGEST,))] * 9, 0),
    ],
    ids=["not stored", "never begun", "never complete"],
)
async def test_what_makes_no_progress_waits_as_an_effect_that_is_refused(
    node: FakeConnection, tmp_path: Path, answers: list[AgainAnswer], posted: int
) -> None:
    await BlobStore(tmp_path).put(DIGEST, _pieces(b"foo"), user="ann")
    node.the_runner.again_answers = answers
    state = asked()
    pipeline = Refusing(state)
    starter = StarterAgain(pipeline, BlobStore(tmp_path), NO_SECRETS)
    with pytest.raises(RetryLater, match="start 1 has not begun, or that is not stored"):
        await starter(context_of(state), node)
    assert (len(node.the_runner.agains), len(pipeline.posted)) == (2, posted)
