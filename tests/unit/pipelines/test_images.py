"""A job that is tried again runs the image that it ran before, whatever its tag says by then."""

from __future__ import annotations

import msgspec

from controller.lifecycle import reports
from controller.lifecycle.draft import Draft
from controller.lifecycle.intake.facts import apply
from controller.lifecycle.model import JobSpec, RunState
from controller.pipelines import from_node, to_node
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import ContainerOptions, Ulimit, VolumeKind, VolumeMount
from tests.support.attempts import attempt_with
from tests.unit.pipelines.parts import attempt_of, context_of, placed, task_of

DIGEST = f"sha256:{'a' * 64}"


def with_spec(state: RunState, **changes: object) -> RunState:
    job = state.jobs[0]
    spec: JobSpec = msgspec.structs.replace(job.spec, **changes)
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))


def second_attempt(occurrence: int = 1, **first: object) -> RunState:
    state = placed(AttemptStatus.PROVISIONING, occurrence=occurrence)
    job, last = state.jobs[0], attempt_of(state)
    earlier = attempt_with(last, id="e" * 16, number=0, occurrence=1, **first)
    later = msgspec.structs.replace(last, number=1)
    jobs = (msgspec.structs.replace(job, attempts=(earlier, later)),)
    return msgspec.structs.replace(state, jobs=jobs)


def test_the_nodes_word_about_the_image_is_kept_with_the_attempt() -> None:
    state = placed(AttemptStatus.PULLING)
    (*_, seen) = from_node.task_reports(task_of(state, image_digest=DIGEST))
    assert isinstance(seen, reports.TaskSeen)
    draft = Draft(state, 0.0, new_id=lambda: "x", jitter=lambda: 0.0)
    apply(draft, [seen])
    assert draft.jobs[0].attempts[0].task.image_digest == DIGEST


def test_a_first_attempt_takes_what_the_tag_says() -> None:
    state = placed(AttemptStatus.PROVISIONING, image_digest=DIGEST)
    assert to_node.task_request(context_of(state)).image_digest is None


def test_a_later_attempt_is_pinned_to_the_first_ones_image() -> None:
    state = second_attempt(image_digest=DIGEST)
    assert to_node.task_request(context_of(state)).image_digest == DIGEST


def test_another_occurrence_looks_at_the_tag_again() -> None:
    state = second_attempt(occurrence=2, image_digest=DIGEST)
    assert to_node.task_request(context_of(state)).image_digest is None


def test_volumes_and_limits_travel_to_the_node() -> None:
    state = with_spec(
        placed(AttemptStatus.PROVISIONING),
        user="anna",
        volumes=(
            VolumeMount(kind=VolumeKind.HOST, source="/mnt/d", target="/data", optional=True),
        ),
        container=ContainerOptions(
            cap_drop=("ALL",), ulimits=(Ulimit(name="memlock", soft=-1, hard=-1),)
        ),
    )
    request = to_node.task_request(context_of(state))
    assert request.volumes == (
        VolumeMount(kind=VolumeKind.HOST, source="/mnt/d", target="/data", optional=True),
    )
    assert (request.container.user, request.container.cap_drop) == ("anna", ("ALL",))
    assert request.container.ulimits == (Ulimit(name="memlock", soft=-1, hard=-1),)
