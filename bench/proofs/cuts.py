"""Cuts of a node's link, on machines with real sshds and shims and a controller with its default
limits: no healthy job is restarted before `node_failure.after`, and no byte of a log is lost.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.proofs._table import conclude
from controller.lifecycle.model import Limits
from fairlead.rest import ControllerClient
from tests.support.daemons import processes_that_mention
from tests.support.lab import ControllerLab
from tests.support.machines import Host, hosts
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

LOST_AFTER = Limits().node_lost_after
EARLIEST_LOSS = LOST_AFTER - 11.0
"""A silence begins with the last byte, which may be a heartbeat from before the cut."""
LATEST_LOSS = LOST_AFTER + 30.0
"""The loss is noticed when the next connection fails; tries are at most 10 s apart and 10 s
long."""
BACK_WITHIN = 60.0
_LOOK_SECONDS = 0.5
_JOB = """\
n=0
while [ ! -e {folder}/end ]; do
  n=$((n+1)); echo "line $n"; echo $n > {folder}/$FAIRLEAD_ATTEMPT_ID; sleep 0.25
done
"""
"""The job counts, so a job that was started again, or a log that lost a byte, is noticed."""


@dataclass
class Cut:
    """A machine that is cut off for `seconds`, and what was seen of it and its job.

    All times are seconds since the cut; `back_after` and `stale_ended_after` count from its end.
    """

    host: Host
    seconds: float
    run: str
    attempt: str = ""
    unreachable_after: float | None = None
    lost_after: float | None = None
    back_after: float | None = None
    stale_ended_after: float | None = None
    began: float = 0.0
    mended: float = 0.0
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def is_long(self) -> bool:
        return self.seconds > LOST_AFTER


class Lab(ControllerLab):
    image = ""

    def __init__(self, folder: Path, machines: Sequence[Host], lengths: Sequence[float]) -> None:
        self.folder = folder
        self.controller = ControllerProcess(folder / "controller")
        self._machines = machines
        self._lengths = lengths
        self.cuts: list[Cut] = []
        self.broken: list[str] = []

    def begin(self) -> None:
        """Start one job on each machine and wait until all run."""
        self.controller.start()
        for machine in self._machines:
            machine.join(self.controller)
        counting = _JOB.format(folder=self.folder)
        for number, machine in enumerate(self._machines):
            self.wait_for_node(lambda node: node["status"] == "connected", machine.name)
            self.submit(f"counting-{number}", resources={"cpu": 1}, ssh="off", commands=[counting])
        by_name = {machine.name: machine for machine in self._machines}
        for number, seconds in enumerate(self._lengths):
            run = f"counting-{number}"
            (attempt,) = self.wait_for(run, "running")["jobs"][0]["attempts"]
            self.cuts.append(Cut(by_name[attempt["node"]], seconds, run, attempt["id"]))

    def cut_and_mend(self) -> None:
        for cut in self.cuts:
            cut.host.cut()
            cut.began = time.monotonic()
        pause = threading.Event()
        while not all(self._is_over(cut) for cut in self.cuts):
            pause.wait(_LOOK_SECONDS)
            nodes = {node["name"]: node["status"] for node in self.get("/v1/nodes")["nodes"]}
            for cut in self.cuts:
                self._look(cut, nodes[cut.host.name])

    def _is_over(self, cut: Cut) -> bool:
        if not cut.mended:
            return False
        seen = cut.back_after is not None and (not cut.is_long or cut.stale_ended_after is not None)
        return seen or time.monotonic() - cut.mended > BACK_WITHIN

    def _look(self, cut: Cut, status: str) -> None:
        now = time.monotonic()
        if status == "unreachable" and cut.unreachable_after is None:
            cut.unreachable_after = now - cut.began
        if status == "lost" and cut.lost_after is None:
            cut.lost_after = now - cut.began
        if not cut.mended:
            if now - cut.began >= cut.seconds:
                self._mend(cut)
            return
        if status == "connected" and cut.back_after is None:
            cut.back_after = now - cut.mended
        gone = cut.is_long and not processes_that_mention(cut.attempt)
        if gone and cut.stale_ended_after is None:
            cut.stale_ended_after = now - cut.mended

    def _mend(self, cut: Cut) -> None:
        if not processes_that_mention(cut.attempt):
            self.broken.append(f"{cut.run}: the job did not outlive the cut of its machine")
        cut.host.mend()
        cut.mended = time.monotonic()

    def end(self) -> None:
        """End every run, and judge it by what it left."""
        for cut in self.cuts:
            last = self.wait_for(cut.run, "running")["jobs"][0]["attempts"][-1]
            wait_until((self.folder / last["id"]).exists, what=f"{cut.run} to count")
        (self.folder / "end").touch()
        for cut in self.cuts:
            self._judge(cut, self.wait_for(cut.run))

    # -- what must hold ---------------------------------------------------------------------

    def _judge(self, cut: Cut, run: Any) -> None:
        attempts = run["jobs"][0]["attempts"]
        reasons = [one["termination_reason"] for one in attempts]
        expected = ["done_by_runner"]
        if cut.is_long:
            expected.insert(0, "instance_unreachable")
        if reasons != expected:
            self._violated(cut, f"its attempts ended as {reasons}")
        if cut.back_after is None:
            self._violated(cut, f"its node was not back within {BACK_WITHIN:g} s")
        if cut.is_long:
            self._judge_loss(cut)
        elif cut.lost_after is not None:
            self._violated(cut, f"its node was lost after {cut.lost_after:.0f} s")
        for one in attempts:
            self._read_log(cut, one["id"], whole=one is attempts[-1])

    def _judge_loss(self, cut: Cut) -> None:
        if cut.lost_after is None or not EARLIEST_LOSS <= cut.lost_after <= LATEST_LOSS:
            self._violated(cut, f"its node was lost after {cut.lost_after} s")
        if cut.stale_ended_after is None:
            self._violated(cut, "its stale task was not ended")

    def _read_log(self, cut: Cut, attempt: str, *, whole: bool) -> None:
        """Check that the log holds all that the job wrote; `whole`: also when it was not killed
        between a line and its number."""
        client = ControllerClient(self.controller.url, self.controller.token)
        log, offset = b"", 0
        for frame in client.stored_frames(cut.run, attempt=attempt):
            if frame.offset != offset or frame.dropped:
                self._violated(cut, f"its log has a gap at {offset}")
                return
            offset = frame.end
            log += frame.payload
        written = int((self.folder / attempt).read_text())
        wanted = b"".join(b"line %d\n" % number for number in range(1, written + 1))
        cut.lines[attempt] = log.count(b"\n")
        if not whole and cut.lines[attempt] == written + 1:
            wanted += b"line %d\n" % (written + 1)
        if log != wanted:
            self._violated(cut, f"its log is not what it wrote: {len(log)} of {len(wanted)} bytes")

    def _violated(self, cut: Cut, what: str) -> None:
        self.broken.append(f"{cut.run} on {cut.host.name}, cut for {cut.seconds:g} s: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=5, metavar="N")
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[30.0, 120.0, 600.0], metavar="S"
    )
    given = parser.parse_args()
    lengths = [seconds for seconds in given.seconds for _ in range(given.each)]
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-cuts-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        lab = Lab(folder, stack.enter_context(hosts(folder, len(lengths))), lengths)
        stack.callback(lab.controller.close)
        lab.begin()
        lab.cut_and_mend()
        lab.end()
    figures = [row for seconds in given.seconds for row in _figures(seconds, lab.cuts)]
    took = ("seconds", f"{time.monotonic() - began:.0f}")
    conclude("cuts of a node's link, for real", [*figures, took], lab.broken)


def _figures(seconds: float, cuts: Sequence[Cut]) -> list[tuple[str, object]]:
    own = [cut for cut in cuts if cut.seconds == seconds]
    restarted = sum(len(cut.lines) > 1 for cut in own)
    name = f"{seconds:g} s"
    rows: list[tuple[str, object]] = [
        (f"{name}: cuts, jobs started again", f"{len(own)}, {restarted}"),
        (f"{name}: lines in logs", sum(sum(cut.lines.values()) for cut in own)),
        (f"{name}: unreachable after", _spread([cut.unreachable_after for cut in own])),
        (f"{name}: back after its end", _spread([cut.back_after for cut in own])),
    ]
    if own[0].is_long:
        rows.append((f"{name}: lost after", _spread([cut.lost_after for cut in own])))
        ended = _spread([cut.stale_ended_after for cut in own])
        rows.append((f"{name}: stale job ended after its end", ended))
    return rows


def _spread(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return f"{known[0]:.1f} to {known[-1]:.1f} s" if known else "never"


if __name__ == "__main__":
    main()
