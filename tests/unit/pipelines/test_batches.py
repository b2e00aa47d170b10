"""The exchanges with a carrier's runner (docs/rules.md 11.14), with a runner that is scripted."""

from __future__ import annotations

import asyncio
import io
import tarfile
from typing import Any

import msgspec
import pytest

from controller.lifecycle import reports
from controller.lifecycle.model import Attempt, Group, JobSpec, RunState
from controller.lifecycle.reports import LeftClean, Report
from controller.logs.store import LogStore, LogWriter
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputStore, StoredOutputs
from controller.pipelines import to_node
from controller.pipelines.performers import batches, log_collection
from controller.pipelines.performers.batches import BatchRunner
from controller.pipelines.to_node import AttemptContext, RetryLater
from controller.store.errors import LeaseLost
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from fairlead.wire.frames import Frame, Stream, encode
from fairlead.wire.job import EndSignal
from fairlead.wire.runner import BatchAnswer, CarriedJob, ExitRecord
from fairlead.wire.sizes import OutputsAbout
from runner.client import RunnerError, RunnerUnavailable
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.node import FakeConnection
from tests.doubles.secrets import GivenSecrets
from tests.support.waiting import LONG
from tests.unit.lifecycle.play import Play
from tests.unit.pipelines.parts import NotedPipeline

END = ExitRecord(reason="done_by_runner", exit_code=0, finished_at=NOW, log_end=5)


class OneTurn(NotedPipeline):
    """Decides nothing by itself: what a performer waits for is over at once."""

    async def settled(self) -> None:
        await asyncio.sleep(0)


def carrying(sets: int = 3, *, signal: EndSignal | None = None) -> Play:
    """A sweep whose first set's container carries the others."""
    plan = SweepPlan(
        sets=ParameterSets.of(["seed"], [[number] for number in range(sets)]),
        max_parallel=1,
        reuse_container=True,
    )
    spec = JobSpec(image="busybox", signal=signal)
    play = Play(sweep=plan, groups=[Group(name="main", nodes=1)], spec=spec)
    play.to_running(0)
    clean = LeftClean(run_id=play.run_id, attempt_id=play.attempt(0).id)
    play.send(play.seen(0), clean, play.exited(0))
    return play


def riders(state: RunState) -> list[Attempt]:
    return [job.attempts[-1] for job in state.jobs if job.attempts[-1].carrier]


def context_of(play: Play) -> AttemptContext:
    found = to_node.find(play.state, play.attempt(0).id)
    assert found is not None
    return found


async def exchanged(
    play: Play, logs: LogStore, outputs: OutputStore, node: FakeConnection, *answers: BatchAnswer
) -> list[Report]:
    """Let the performer get these answers, then lose the runner; return what it posted."""
    pipeline = OneTurn(play.state)
    node.the_runner.answers = [*answers, RunnerUnavailable("cut")]
    perform = BatchRunner(pipeline, ManualClock(play.now), logs, outputs, GivenSecrets())
    with pytest.raises(RunnerUnavailable):
        await perform(context_of(play), node)
    return pipeline.posted


async def test_the_jobs_of_a_batch_are_sent_once(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    ids = [one.id for one in riders(play.state)]
    there = BatchAnswer(jobs=tuple(CarriedJob(attempt_id=one) for one in ids))
    await exchanged(play, logs, outputs, node, there)
    first, second = node.the_runner.batches
    assert [one.job.attempt_id for one in first.jobs] == ids
    assert [one.job.env["FAIRLEAD_PARAM_SEED"] for one in first.jobs] == ["1", "2"]
    assert second.jobs == ()


async def test_a_log_is_whole_on_disk_before_its_end_is_posted(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    frame = encode(Frame(0, 1, Stream.STDOUT, b"hello"))
    done = CarriedJob(
        attempt_id=rider.id, began_at=NOW, started_at=NOW, exit=END, log=frame, log_complete=True
    )
    posted = await exchanged(play, logs, outputs, node, BatchAnswer(jobs=(done,)))
    carried, exited = posted
    assert isinstance(carried, reports.Carried)
    assert (carried.stored, carried.attempt_id) == (True, rider.id)
    assert isinstance(exited, reports.RunnerExited)
    assert exited.reason is Reason.DONE_BY_RUNNER
    assert await logs.is_complete(rider.id)


async def test_an_end_whose_log_is_not_whole_is_not_posted(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    half = CarriedJob(attempt_id=riders(play.state)[0].id, began_at=NOW, exit=END)
    assert await exchanged(play, logs, outputs, node, BatchAnswer(jobs=(half,))) == []


async def test_a_runner_is_asked_more_and_more_slowly_while_the_store_refuses_the_run(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play, loop = carrying(), asyncio.get_running_loop()
    rider = riders(play.state)[0]
    done = CarriedJob(
        attempt_id=rider.id, began_at=NOW, started_at=NOW, exit=END, log_complete=True
    )
    began = loop.time()
    posted = await exchanged(play, logs, outputs, node, *[BatchAnswer(jobs=(done,))] * 4)
    assert len(posted) == 8, "what was not stored is posted again"
    assert loop.time() - began >= 0.02 + 0.04 + 0.08 + 0.16


async def test_a_damaged_log_ends_where_the_damage_begins(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    sound = encode(Frame(0, 1, Stream.STDOUT, b"hello"))
    damaged = bytearray(encode(Frame(5, 1, Stream.STDOUT, b"world")))
    damaged[-1] ^= 1
    more = CarriedJob(attempt_id=rider.id, began_at=NOW, started_at=NOW, log=sound + bytes(damaged))
    over = msgspec.structs.replace(more, exit=END, log=bytes(damaged))
    posted = await exchanged(
        play, logs, outputs, node, BatchAnswer(jobs=(more,)), BatchAnswer(jobs=(over,))
    )
    assert [type(one) for one in posted][-2:] == [reports.Carried, reports.RunnerExited]
    assert await logs.is_complete(rider.id)
    asked = node.the_runner.batches[1].offsets[rider.id]
    assert asked > END.log_end, "a runner that has more of the log would answer at once"


async def test_a_signal_is_sent_with_its_cause_and_noted_once_the_runner_has_it(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying(signal=EndSignal(name="SIGUSR1", before=60.0))
    rider = riders(play.state)[0]
    carrier = play.attempt(0)
    runs = reports.Carried(
        run_id=play.run_id, attempt_id=rider.id, carrier_id=carrier.id, started_at=play.now
    )
    drains = msgspec.structs.replace(
        play.around, drain_deadlines={carrier.node_id or "": play.now + 30.0}
    )
    play.around = drains
    play.send(runs)
    there = CarriedJob(attempt_id=rider.id, began_at=NOW, started_at=NOW)
    posted = await exchanged(play, logs, outputs, node, BatchAnswer(jobs=(there,)))
    (sent,) = node.the_runner.batches[0].signals
    assert (sent.attempt_id, sent.request.cause) == (rider.id, "node_drained")
    assert 0 < sent.request.ends_in <= 30.0
    (noted,) = (one for one in posted if isinstance(one, reports.JobSignalled))
    assert (noted.attempt_id, noted.ids) == (rider.id, (sent.request.id,))


async def test_what_no_commit_knows_is_stopped_or_forgotten(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    runs = CarriedJob(attempt_id="stray", began_at=NOW)
    over = CarriedJob(attempt_id="over", began_at=NOW, exit=END, log_complete=True)
    await exchanged(play, logs, outputs, node, BatchAnswer(jobs=(runs, over)))
    second = node.the_runner.batches[1]
    assert [one.attempt_id for one in second.stop] == ["stray"]
    assert second.stored == ("over",)


async def test_a_dirty_container_is_reported(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    posted = await exchanged(play, logs, outputs, node, BatchAnswer(dirty="/tmp changed"))
    assert [type(one) for one in posted] == [reports.NotReusable]


async def test_the_log_of_a_stopped_container_says_nothing_of_the_end(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    killed = ExitRecord(
        reason="container_exited_with_error",
        exit_code=143,
        finished_at=NOW,
        log_end=0,
        container_stopped=True,
    )
    job = CarriedJob(
        attempt_id=riders(play.state)[0].id, began_at=NOW, exit=killed, log_complete=True
    )
    assert await exchanged(play, logs, outputs, node, BatchAnswer(jobs=(job,))) == []


async def test_a_carrier_that_was_given_up_is_left_alone(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying(1)
    assert play.attempt(0).carries_until == 0.0
    perform = BatchRunner(OneTurn(play.state), ManualClock(play.now), logs, outputs, GivenSecrets())
    await perform(context_of(play), node)
    assert node.the_runner.batches == []


async def test_a_runner_without_batches_is_given_up_and_its_jobs_wait_again(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    pipeline = OneTurn(play.state)
    node.the_runner.answers = [RunnerError("not_found", "no such path", 404)]
    perform = BatchRunner(pipeline, ManualClock(play.now), logs, outputs, GivenSecrets())
    with pytest.raises(RetryLater):
        await perform(context_of(play), node)
    assert [type(one) for one in pipeline.posted] == [reports.RunnerSilent]
    waiting = [one.id for one in riders(play.state)]
    play.send(*pipeline.posted)
    play.send(play.removed(0))
    again = [job.attempts[-1] for job in play.state.jobs if job.attempts[-1].id in waiting]
    assert [one.id for one in again] == waiting
    assert {(one.status, one.carrier or None) for one in again} == {(AttemptStatus.SUBMITTED, None)}


class Superseded(NotedPipeline):
    """Another controller leads now."""

    async def settled(self) -> None:
        raise LeaseLost("another controller has taken over")


async def test_a_batch_of_a_controller_that_leads_no_more_is_left_to_the_next_one(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    pipeline = Superseded(play.state)
    began = CarriedJob(attempt_id=riders(play.state)[0].id, began_at=NOW, started_at=NOW)
    node.the_runner.answers = [BatchAnswer(jobs=(began,))]
    perform = BatchRunner(pipeline, ManualClock(play.now), logs, outputs, GivenSecrets())
    with pytest.raises(RetryLater, match="taken over"):
        await perform(context_of(play), node)


async def test_a_runner_that_refuses_for_too_long_is_given_up(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    pipeline, clock = OneTurn(play.state), ManualClock(play.now)
    node.the_runner.answers = [RunnerError("too_large", "a request is limited", 413)] * 2
    perform = BatchRunner(pipeline, clock, logs, outputs, GivenSecrets())
    with pytest.raises(RetryLater):
        await perform(context_of(play), node)
    assert pipeline.posted == []
    clock.time += play.state.run.policy.limits.waiting_runner
    with pytest.raises(RetryLater):
        await perform(context_of(play), node)
    assert [type(one) for one in pipeline.posted] == [reports.RunnerSilent]


async def test_a_log_that_cannot_be_opened_leaves_no_other_one_open(
    node: FakeConnection, logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = carrying(4)
    first, second, third = (one.id for one in riders(play.state))
    frame = encode(Frame(0, 1, Stream.STDOUT, b"hello"))
    jobs = tuple(CarriedJob(attempt_id=id, log=frame) for id in (third, second, first))
    opens = logs.writer

    async def writer(attempt_id: str) -> LogWriter:
        if attempt_id == first:
            raise OSError("the bucket is away")
        if attempt_id == third:
            await asyncio.Event().wait()
        return await opens(attempt_id)

    node.the_runner.answers = [BatchAnswer(jobs=jobs)]
    perform = BatchRunner(OneTurn(play.state), ManualClock(play.now), logs, outputs, GivenSecrets())
    async with asyncio.timeout(LONG):
        with monkeypatch.context() as patched:
            patched.setattr(logs, "writer", writer)
            with pytest.raises(OSError, match="bucket is away"):
                await perform(context_of(play), node)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        await (await logs.writer(second)).close()


def a_tar(name: str, content: bytes) -> tuple[OutputsAbout, bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    data = packed.getvalue()
    about = OutputsAbout(files=1, size=len(content), left_out=0, left_out_size=0, length=len(data))
    return about, data


def ended(rider: Attempt, about: OutputsAbout | None, piece: bytes, **more: Any) -> BatchAnswer:
    job = CarriedJob(
        attempt_id=rider.id,
        began_at=NOW,
        started_at=NOW,
        exit=END,
        log_complete=True,
        outputs=about,
        outputs_piece=piece,
        **more,
    )
    return BatchAnswer(jobs=(job,))


async def test_outputs_are_stored_before_the_end_is_posted(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    about, data = a_tar("loss.txt", b"0.5")
    pieces = ended(rider, about, data[:700]), ended(rider, about, data[700:])
    posted = await exchanged(play, logs, outputs, node, *pieces)
    assert [one.outputs.get(rider.id) for one in node.the_runner.batches[1:]] == [700, len(data)]
    assert [type(one) for one in posted] == [
        reports.OutputsCollected,
        reports.Carried,
        reports.RunnerExited,
    ]
    stored = await outputs.find(rider.id)
    assert stored is not None
    assert [one.name for one in stored.files] == ["loss.txt"]
    assert outputs.archive(rider.id).read_bytes() == data


async def test_outputs_that_another_controller_began_to_store_go_on_there(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    about, data = a_tar("loss.txt", b"0.5")
    await exchanged(play, logs, outputs, node, ended(rider, about, data[:700]))
    node.the_runner.batches.clear()
    begins_again = ended(rider, about, data[:900]), ended(rider, about, data[700:])
    posted = await exchanged(play, logs, outputs, node, *begins_again)
    assert node.the_runner.batches[1].outputs == {rider.id: 700}
    assert isinstance(posted[0], reports.OutputsCollected)
    assert outputs.archive(rider.id).read_bytes() == data


async def test_outputs_that_stay_damaged_are_lost_and_hold_up_nothing(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    about, data = a_tar("loss.txt", b"0.5")
    damaged = ended(rider, about, b"x" * len(data))
    posted = await exchanged(play, logs, outputs, node, damaged, damaged)
    carried = posted[0]
    assert isinstance(carried, reports.Carried)
    assert carried.outputs_lost
    assert await outputs.find(rider.id) is None


async def test_a_runner_that_sends_more_than_it_announced_fills_no_disk(
    node: FakeConnection, logs: LogStore, outputs: OutputStore
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    about, data = a_tar("loss.txt", b"0.5")
    more = ended(rider, about, data + b"x")
    posted = await exchanged(play, logs, outputs, node, more, more)
    assert [type(one) for one in posted] == [reports.Carried, reports.RunnerExited]
    assert await outputs.find(rider.id) is None


async def test_jobs_too_large_for_one_request_follow_in_the_next(
    node: FakeConnection, logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_SENT", 100)
    play = carrying()
    ids = [one.id for one in riders(play.state)]
    answers = [
        BatchAnswer(jobs=tuple(CarriedJob(attempt_id=one) for one in ids[:sent])) for sent in (1, 2)
    ]
    await exchanged(play, logs, outputs, node, *answers)
    sent = [[one.job.attempt_id for one in request.jobs] for request in node.the_runner.batches]
    assert sent == [ids[:1], ids[1:], []]


async def test_the_log_of_a_job_that_runs_is_made_durable_before_its_end(
    node: FakeConnection, logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOON_SECONDS", "LATE_SECONDS"):
        monkeypatch.setattr(log_collection, name, 0.0)
    synced, sync = asyncio.Event(), LogWriter.sync

    async def noted(writer: LogWriter) -> int:
        synced.set()
        return await sync(writer)

    monkeypatch.setattr(LogWriter, "sync", noted)
    play = carrying()
    frame = encode(Frame(0, 1, Stream.STDOUT, b"hello"))
    runs = CarriedJob(attempt_id=riders(play.state)[0].id, began_at=NOW, log=frame)
    node.the_runner.answers = [BatchAnswer(jobs=(runs,))]
    pipeline = OneTurn(play.state)
    perform = BatchRunner(pipeline, ManualClock(play.now), logs, outputs, GivenSecrets())
    task = asyncio.create_task(perform(context_of(play), node))
    async with asyncio.timeout(LONG):
        await synced.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not await logs.is_complete(runs.attempt_id)


async def test_an_end_waits_until_the_bucket_has_its_outputs(
    node: FakeConnection, logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = carrying()
    rider = riders(play.state)[0]
    about, data = a_tar("loss.txt", b"0.5")
    secured: list[StoredOutputs] = []

    async def away(attempt_id: str, stored: StoredOutputs) -> None:
        raise BucketError("away")

    async def back(attempt_id: str, stored: StoredOutputs) -> None:
        secured.append(stored)

    monkeypatch.setattr(outputs, "secure", away)
    pipeline = OneTurn(play.state)
    perform = BatchRunner(pipeline, ManualClock(play.now), logs, outputs, GivenSecrets())
    node.the_runner.answers = [ended(rider, about, data), RunnerUnavailable("cut")]
    with pytest.raises(BucketError):
        await perform(context_of(play), node)
    assert pipeline.posted == []
    monkeypatch.setattr(outputs, "secure", back)
    posted = await exchanged(play, logs, outputs, node, ended(rider, about, data))
    assert [one.length for one in secured] == [len(data)]
    assert isinstance(posted[0], reports.OutputsCollected)
