"""The health gate: each check fails with a sentence of its own, and passes again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.lifecycle.model import Node
from controller.nodes.health import (
    MAX_FAILED_STARTS,
    Reading,
    after_health_check,
    after_recall,
    after_task,
    with_another_chance,
    without_gpu,
)
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.node import GpuInfo, Recall
from fairlead.wire.shim import TaskInfo, TaskReason, TaskStatus
from tests.doubles.clock import NOW
from tests.doubles.node import HEALTH
from tests.doubles.shim import node_info
from tests.unit.pipelines.parts import a_node, placed, task_of

GPU = GpuInfo(uuid="GPU-1", index=0, name="H100", memory=80 << 30)


def reading(at: float | None = None, api: str = "v1", **info: Any) -> Reading:
    health = msgspec.structs.replace(HEALTH, at=at, api_versions=(api,))
    return Reading(health=health, info=node_info(**info), asked_at=NOW, answered_at=NOW + 2.0)


def unfit(one: Reading, node: Node | None = None) -> str:
    return after_health_check(node or a_node(), one).unfit or ""


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (reading(api="v2"), "speaks API v2, this controller v1"),
        (reading(engine_error="no socket"), "engine does not answer: no socket"),
        (reading(disk_free=100 << 20), "only 100 MiB are free"),
        (reading(at=NOW + 100.0), "its clock is 98 s ahead"),
        (reading(at=NOW - 100.0), "its clock is 100 s behind"),
    ],
)
def test_a_failing_check_says_what_is_wrong(one: Reading, words: str) -> None:
    assert words in unfit(one)


@pytest.mark.parametrize("at", [None, NOW - 59.0, NOW + 1.0, NOW + 61.0])
def test_a_node_that_passes_is_fit(at: float | None) -> None:
    assert unfit(reading(at=at, disk_free=2 << 30), a_node(unfit="something was wrong")) == ""


def test_a_node_fails_since_its_first_check_that_failed() -> None:
    node = after_health_check(a_node(), reading(engine_error="no socket"))
    assert node.unfit_since == NOW + 2.0
    later = Reading(health=HEALTH, info=node_info(disk_free=1), answered_at=NOW + 60.0)
    still = after_health_check(node, later)
    assert ("MiB are free" in (still.unfit or ""), still.unfit_since) == (True, NOW + 2.0)
    assert after_health_check(still, reading()).unfit_since is None


def test_the_keys_of_controllers_are_known_and_nothing_else_is_taken_for_one() -> None:
    known = f"SHA256:{'a' * 43}"
    node = after_health_check(a_node(), reading(controllers=(known, "<b>SHA256:x</b>")))
    assert (node.capacity.controllers, node.unfit) == ((known,), None)


def test_a_missing_gpu_is_remembered_until_it_is_back() -> None:
    whole = after_health_check(a_node(), reading(gpus=(GPU,)))
    assert whole.unfit is None
    for node in (
        after_health_check(whole, reading()),
        after_health_check(after_health_check(whole, reading()), reading()),
    ):
        (gpu,) = node.capacity.gpus
        assert (gpu.missing, gpu.healthy) == (True, False)
        assert "GPU GPU-1 (H100) is missing" in (node.unfit or "")
        assert f"`fairlead node clear-gpu {node.name} GPU-1`" in (node.unfit or "")
    back = after_health_check(after_health_check(whole, reading()), reading(gpus=(GPU,)))
    assert (back.unfit, back.capacity.gpus[0].missing) == (None, False)


def test_a_gpu_that_was_taken_out_may_be_forgotten() -> None:
    without = after_health_check(after_health_check(a_node(), reading(gpus=(GPU,))), reading())
    forgotten = after_health_check(without_gpu(without, "GPU-1"), reading())
    assert (forgotten.unfit, forgotten.capacity.gpus) == (None, ())


def instance(number: int, board: str = "GPU-1") -> GpuInfo:
    return msgspec.structs.replace(GPU, uuid=f"MIG-{board}-{number}", parent=board)


WHOLE, IN_TWO = (GPU,), (instance(0), instance(1))
IN_TWO_OTHERS, IN_NONE = (instance(2), instance(3)), ()


@pytest.mark.parametrize("before", [WHOLE, IN_TWO])
@pytest.mark.parametrize("after", [WHOLE, IN_TWO_OTHERS, IN_NONE])
def test_a_card_that_is_split_anew_is_not_missing(
    before: tuple[GpuInfo, ...], after: tuple[GpuInfo, ...]
) -> None:
    node = after_health_check(a_node(), reading(gpus=before, gpu_boards=("GPU-1",)))
    node = after_health_check(node, reading(gpus=after, gpu_boards=("GPU-1",)))
    assert node.unfit is None
    assert [gpu.uuid for gpu in node.capacity.gpus] == [gpu.uuid for gpu in after]


def test_a_card_is_there_when_a_shim_of_an_earlier_version_names_its_instances() -> None:
    node = after_health_check(a_node(), reading(gpus=IN_TWO))
    node = after_health_check(node, reading(gpus=IN_TWO_OTHERS))
    assert (node.unfit, len(node.capacity.gpus)) == (None, 2)


def test_the_instances_of_a_card_that_is_gone_are_missing_and_forgotten_together() -> None:
    other = instance(0, "GPU-2")
    node = after_health_check(
        a_node(), reading(gpus=(*IN_TWO, other), gpu_boards=("GPU-1", "GPU-2"))
    )
    now = reading(gpus=(other,), gpu_boards=("GPU-2",))
    node = after_health_check(node, now)
    assert [gpu.uuid for gpu in node.capacity.gpus if gpu.missing] == ["MIG-GPU-1-0", "MIG-GPU-1-1"]
    forgotten = after_health_check(without_gpu(node, "MIG-GPU-1-0"), now)
    assert (forgotten.unfit, len(forgotten.capacity.gpus)) == (None, 1)


def test_several_failures_are_all_told() -> None:
    text = unfit(reading(disk_free=0, engine_error="gone"))
    assert "engine does not answer: gone; only 0 MiB" in text


def not_started(task_id: str) -> TaskInfo:
    info = task_of(placed(AttemptStatus.PULLING))
    return msgspec.structs.replace(
        info,
        id=task_id,
        status=TaskStatus.TERMINATED,
        reason=TaskReason.INSTANCE_UNREACHABLE,
        message="unknown runtime nvidia",
        times=msgspec.structs.replace(info.times, running_at=None),
    )


def started(task_id: str) -> TaskInfo:
    info = not_started(task_id)
    times = msgspec.structs.replace(info.times, running_at=NOW)
    return msgspec.structs.replace(info, status=TaskStatus.RUNNING, reason=None, times=times)


def after(*infos: TaskInfo, node: Node | None = None) -> Node:
    node = node or a_node()
    for info in infos:
        node = after_task(node, info)
    return node


def test_three_jobs_in_a_row_that_a_node_cannot_start_cordon_it() -> None:
    failed = [not_started(f"t{number}") for number in range(MAX_FAILED_STARTS)]
    assert not after(*failed[:-1]).cordoned
    node = after(*failed)
    assert node.cordoned
    assert "3 jobs in a row could not be started here" in (node.cordon_reason or "")
    assert "unknown runtime nvidia" in (node.cordon_reason or "")


def test_jobs_for_which_a_node_is_full_do_not_cordon_it() -> None:
    """Any user could otherwise take a node from all others with a few dozen runs."""
    full = [
        msgspec.structs.replace(not_started(f"t{number}"), reason=TaskReason.NO_CAPACITY)
        for number in range(MAX_FAILED_STARTS * 3)
    ]
    assert (after(*full).cordoned, after(*full).failed_starts) == (False, ())


def test_a_report_that_comes_again_counts_once() -> None:
    assert not after(*[not_started("t")] * 5).cordoned


def test_a_job_that_starts_ends_the_row() -> None:
    node = after(not_started("a"), not_started("b"), started("c"), not_started("d"))
    assert (node.cordoned, node.failed_starts) == (False, ("d",))


def test_a_job_that_fails_by_its_own_fault_counts_for_nothing() -> None:
    own = TaskReason.CREATING_CONTAINER_ERROR
    failed = [msgspec.structs.replace(not_started(f"t{n}"), reason=own) for n in range(5)]
    assert after(*failed) == a_node()


def test_a_check_that_succeeds_after_one_that_failed_gives_another_chance() -> None:
    cordoned = after(*(not_started(f"t{number}") for number in range(MAX_FAILED_STARTS)))
    well = after_health_check(cordoned, reading())
    assert well.cordoned, "the check cannot see what is wrong"
    broken = after_health_check(cordoned, reading(engine_error="no socket"))
    mended = after_health_check(broken, reading())
    assert (mended.cordoned, mended.cordon_reason, mended.failed_starts) == (False, None, ())


def test_another_chance_leaves_the_cordon_of_an_admin() -> None:
    node = a_node(cordoned=True, cordon_reason="a new disk", failed_starts=("t",))
    assert with_another_chance(node).cordon_reason == "a new disk"


def test_a_recall_drains_the_node_until_an_admin_ends_that() -> None:
    known = Recall(at=NOW + 120.0, why="EC2 takes the spot instance back (terminate)")
    node = after_recall(a_node(), known)
    assert (node.draining, node.recalled_at, node.drain_deadline) == (True, NOW + 120.0, None)
    assert (node.drain_reason or "").startswith("EC2 takes the spot instance back (terminate) at 2")
    assert after_recall(node, known) is node
    assert after_recall(node, None) is node
    back = a_node(ended_recall=node.recalled_at)
    assert after_recall(back, known) is back


def test_a_machine_that_was_started_again_can_be_recalled_again() -> None:
    again = Recall(at=NOW + 7200.0, why="EC2 takes the spot instance back (stop)")
    for node in (a_node(recalled_at=NOW), a_node(ended_recall=NOW)):
        recalled = after_recall(node, again)
        assert (recalled.draining, recalled.recalled_at) == (True, NOW + 7200.0)
