"""A sweep on the command line: followed with its output, waited for, and what failed at its end."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of

SWEEP = """
type: task
name: lrs
image: busybox
commands: ["echo ${{ params.seed }}"]
sweep: {matrix: {seed: 0..1}, max_parallel: 1}
"""


async def test_the_output_of_each_set_is_followed_and_the_failed_ones_are_told(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file = tmp_path / "lrs.yaml"
    file.write_text(SWEEP)
    assert (await of(start, "apply", str(file), "-d")).status == 0
    follower, waiter = await start("logs", "-f", "lrs"), await start("wait", "lrs")
    await waiter.hears("queued")
    for number in (0, 1):
        await node.runs("lrs")
        await node.prints("lrs", b"seed %d\n" % number)
        await follower.prints(b"%d | seed %d\n" % (number, number))
        await node.ends("lrs", number)
    followed, waited = await follower.ended(), await waiter.ended()
    assert (followed.status, waited.status, waited.out) == (0, 1, b""), followed.err
    for shown in (followed.err, waited.err):
        assert "job 1 failed (seed=1): " in shown
        assert "lrs: failed: 1 of 2 parameter sets failed" in shown


async def test_logs_of_chosen_sets_come_in_their_order_each_after_its_parameters(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file = tmp_path / "lrs.yaml"
    file.write_text(SWEEP.replace("0..1", "0..11"))
    await of(start, "apply", str(file), "-d")
    for number in range(12):
        await node.runs("lrs")
        await node.prints("lrs", b"first of %d\nlast of %d\n" % (number, number))
        await node.ends("lrs", 0 if number == 3 else 1)
    failed = [number for number in range(12) if number != 3]
    shown = await of(start, "logs", "lrs", "--failed", "--tail", "1")
    assert shown.out == b"".join(b"%d | last of %d\n" % (one, one) for one in failed), shown.err
    told = [line.split("): ")[0] for line in shown.err.splitlines()]
    assert told == [f"fairlead: job {one} (seed={one}" for one in failed]
    some = await of(start, "logs", "lrs", "--jobs", "2-4")
    lines = [b"%d | first of %d\n%d | last of %d\n" % (one, one, one, one) for one in (2, 3, 4)]
    assert some.out == b"".join(lines)
    assert "fairlead: job 3 (seed=3): done\n" in some.err
    both = await of(start, "logs", "lrs", "--failed", "--jobs", "3,4", "--tail", "1")
    assert both.out == b"4 | last of 4\n"
    for option in ("--failed", "--jobs=3"):
        refused = await of(start, "logs", "lrs", option, "-f")
        assert (refused.status, "goes with" in refused.err) == (2, True)


async def test_retry_of_an_ended_sweep_says_which_run_is_new(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file = tmp_path / "lrs.yaml"
    file.write_text(SWEEP)
    await of(start, "apply", str(file), "-d")
    for code in (0, 1):
        await node.runs("lrs")
        await node.ends("lrs", code)
    again = await of(start, "retry", "lrs", "--failed")
    assert again.status == 0
    assert "has ended: 1 of its 2 sets are submitted as the new run lrs (" in again.err
    assert again.out == b"lrs: submitted: 0 of 1 done\n"
    # Now the name is that of the new run, of which nothing has failed.
    live = await of(start, "retry", "lrs", "--failed")
    assert (live.status, "no parameter set failed" in live.err) == (1, True)


async def test_retry_says_which_sets_it_leaves_out(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    file, waits = tmp_path / "lrs.yaml", tmp_path / "waits.yaml"
    file.write_text(SWEEP)
    waits.write_text(SWEEP.replace("lrs", "check") + "after: [{run: lrs, job: same}]\n")
    await of(start, "apply", str(file), "-d")
    await of(start, "apply", str(waits), "-d")
    for name, code in (("lrs", 0), ("lrs", 1), ("check", 1)):
        await node.runs(name)
        await node.ends(name, code)
    again = await of(start, "retry", "check", "--failed")
    assert again.status == 0, again.err
    assert "1 of its 2 sets are submitted as the new run check (" in again.err
    assert "not retried: 1; of what they wait for, 1 of run lrs (" in again.err


async def test_a_sweep_of_a_file_runs_again(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    (tmp_path / "params.csv").write_text("seed\n4\n5\n")
    file = tmp_path / "lrs.yaml"
    file.write_text(SWEEP.replace("matrix: {seed: 0..1}", "file: params.csv"))
    await of(start, "apply", str(file), "-d")
    for _ in range(2):
        await node.runs("lrs")
        await node.ends("lrs", 0)
    again = await of(start, "rerun", "lrs", "-d", "--override", "sweep.max_parallel=2")
    assert again.status == 0, again.err
    listed = await of(start, "ps", "lrs", "--jobs")
    assert [line.split()[1:3] for line in listed.out.decode().splitlines()[1:]] == [
        ["4", "active"],
        ["5", "active"],
    ]
    for field, why in (
        ("sweep.matrix.seed=[9]", "sweep.matrix: can't be given together with sets"),
        ("sweep.file=other.csv", "sweep.file: `rerun` reads no file"),
    ):
        refused = await of(start, "rerun", "lrs", "-n", "other", "--override", field)
        assert (refused.status, why in refused.err) == (2, True), refused.err


async def test_a_sweep_that_waits_for_another_is_followed_from_its_submission_on(
    start: Fairlead, node: PlayedNode, tmp_path: Path
) -> None:
    first, second = tmp_path / "lrs.yaml", tmp_path / "evaluate.yaml"
    first.write_text(SWEEP)
    second.write_text(
        SWEEP.replace("name: lrs", "name: evaluate\nafter: [{run: lrs, job: same}]\nports: [9]")
    )
    await of(start, "apply", str(first), "-d")
    follower = await start("apply", str(second))
    await follower.hears("queued: after run lrs: each set waits until the one with its parameters")
    await of(start, "stop", "lrs")
    ended = await follower.ended()
    assert (ended.status, ended.out) == (1, b"")
    assert "2 jobs failed (seed=0, 1): the same parameter set of run lrs has ended" in ended.err
    assert "--failed --tail" not in ended.err


async def test_wait_ends_with_the_status_of_the_first_run_that_failed(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    for name in ("one", "two"):
        await of(start, "apply", task, "-d", "-n", name)
    waiter = await start("wait", "one", "two")
    for name, code in (("two", 0), ("one", 5)):
        await node.runs(name)
        await node.prints(name, b"not shown\n")
        await node.ends(name, code)
    ended = await waiter.ended()
    assert (ended.status, ended.out) == (5, b"")
    assert ended.err.index("one: failed") < ended.err.index("two: done")
    assert (await of(start, "wait")).status == 2
