"""The starter hands a job's uploads and secrets to its runner, and says so when they are gone."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable
from pathlib import Path

import msgspec
import pytest

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.lifecycle.model import JobRepo
from controller.pipelines import to_node
from controller.pipelines.performers.job_running import JobStarter
from controller.pipelines.to_node import AttemptContext
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.job import Files, RepoCredentials
from runner.client import RunnerUnavailable
from tests.doubles.clock import ManualClock
from tests.doubles.node import FakeConnection
from tests.doubles.secrets import NO_SECRETS
from tests.unit.pipelines.parts import ALONE, NotedPipeline, context_of, placed

BLOBS = {hashlib.sha256(blob).hexdigest(): blob for blob in (b"diff", b"archive")}
DIFF, ARCHIVE = BLOBS
REPO = JobRepo(path="/r", url="https://h/r", commit="c" * 40, diff=DIFF, token="canary")


def a_context() -> AttemptContext:
    state = placed(AttemptStatus.PULLING)
    job = state.jobs[0]
    files = (Files(path="/f", archive=ARCHIVE),)
    spec = msgspec.structs.replace(job.spec, repos=(REPO,), files=files, secrets={"A": "b"})
    jobs = (msgspec.structs.replace(job, spec=spec),)
    return context_of(msgspec.structs.replace(state, jobs=jobs))


async def _once(content: bytes) -> AsyncIterable[bytes]:
    yield content


@pytest.fixture
async def blobs(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path / "blobs")
    for digest, content in BLOBS.items():
        await store.put(digest, _once(content), user="ada")
    return store


async def test_all_code_is_sent_before_the_job_is_started(blobs: BlobStore) -> None:
    node, pipeline = FakeConnection(), NotedPipeline()
    context = a_context()
    await JobStarter(pipeline, ManualClock(), blobs, ALONE, NO_SECRETS)(context, node)
    assert node.the_runner.asked == ["start", "put_code", "put_code", "run"]
    assert node.the_runner.code == BLOBS
    assert isinstance(pipeline.posted[0], reports.RunnerStarted)


async def test_a_lost_connection_sends_it_again(blobs: BlobStore) -> None:
    node, pipeline = FakeConnection(), NotedPipeline()
    starter = JobStarter(pipeline, ManualClock(), blobs, ALONE, NO_SECRETS)
    context = a_context()
    node.the_runner.failures = [None, None, RunnerUnavailable("cut")]
    with pytest.raises(RunnerUnavailable):
        await starter(context, node)
    node.the_runner.code.clear()
    await starter(context, node)
    assert node.the_runner.code == BLOBS
    assert node.the_runner.asked[-1] == "run"


async def test_code_that_is_gone_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    node, pipeline = FakeConnection(), NotedPipeline()
    context = a_context()
    await JobStarter(pipeline, ManualClock(), BlobStore(tmp_path / "empty"), ALONE, NO_SECRETS)(
        context, node
    )
    (exited,) = pipeline.posted
    assert isinstance(exited, reports.RunnerExited)
    assert exited.reason is Reason.EXECUTOR_ERROR
    assert "apply it again" in (exited.message or "")
    assert node.the_runner.asked == ["start"]


def test_the_runner_is_told_all_about_the_code() -> None:
    request = to_node.submit_request(a_context())
    (repo,) = request.job.repos
    assert (repo.path, repo.url, repo.commit, repo.diff) == ("/r", "https://h/r", "c" * 40, DIFF)
    assert request.repo_credentials == {"/r": RepoCredentials(token="canary")}
    assert request.secrets == {"A": "b"}
    assert "canary" not in repr(request)
