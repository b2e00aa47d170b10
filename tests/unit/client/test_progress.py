"""The words for a run, of documents as the API gives them."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from fairlead import Client, Task
from fairlead.model.reasons import Reason
from fairlead.model.statuses import IrisState
from fairlead.summaries.progress import comebacks
from fairlead.views import AttemptView, JobView, RunView
from tests.unit.cli.conftest import PlayedNode


async def ended_run(client: Client, node: PlayedNode) -> RunView:
    task = Task(name="hello", commands=["true"])
    run = await asyncio.to_thread(client.submit, task)
    await node.runs("hello")
    await node.ends("hello", 3)
    return (await asyncio.to_thread(run.refresh)).state


def told(run: RunView, **job: object) -> list[str]:
    """What is told of the run's first job, with these fields."""
    changed = replace(run, jobs=(replace(run.jobs[0], **job),))
    return [sentence for _, _, sentence in comebacks(changed)]


def attempt_of(job: JobView, **fields: object) -> AttemptView:
    return replace(job.attempts[0], **fields)


async def test_an_attempt_that_ended_is_told_when_its_job_comes_back(
    client: Client, node: PlayedNode
) -> None:
    run = await ended_run(client, node)
    failed = "attempt 0 failed: the job ended with exit code 3; it "
    assert told(run) == []
    assert told(run, state=IrisState.PENDING) == [f"{failed}will be tried again"]
    waits = told(run, state=IrisState.PENDING, retry_at="2026-11-24T08:00:00Z")
    assert waits == [f"{failed}will be tried again at 2026-11-24T08:00:00Z"]
    job = run.jobs[0]
    second = attempt_of(job, id="2", number=1, termination_reason=None)
    assert told(run, attempts=(job.attempts[0], second)) == [f"{failed}is tried again"]
    next_occurrence = replace(second, occurrence=2)
    assert told(run, attempts=(job.attempts[0], next_occurrence)) == []


async def test_an_attempt_that_was_evicted_did_not_fail(client: Client, node: PlayedNode) -> None:
    run = await ended_run(client, node)
    evicted = attempt_of(run.jobs[0], termination_reason=Reason.PREEMPTED, message=None)
    assert told(run, attempts=(evicted,), state=IrisState.PENDING) == [
        "attempt 0 ended: A job of a higher band needed this job's allocation;"
        " it will be tried again"
    ]
