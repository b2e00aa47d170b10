"""The bucket is slow, full of 503, hangs, refuses its keys as expired, and is away for long, while
jobs write logs.

Three controllers share a PostgreSQL and a bucket for everything. Jobs on one node print numbered
lines all the time; one of them ends, and another one is submitted, while the bucket is away. In
the middle of that the leader is killed and loses its disk. Readers follow at the leader and at a
follower. Memory and disks of the controllers and of the node are watched. At the end each log in
the bucket, each log that is read, and what each reader got, equals what the job printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.proofs._faulty_bucket import FaultyBucket, Mode, faulty_bucket
from bench.proofs._peers import Parts, parts_of_peers
from bench.proofs._table import conclude
from fairlead.wire.frames import Decoder
from tests.support.processes import ControllerProcess, run_cli
from tests.support.waiting import wait_until

_MIB = 1 << 20
_LINE = 10
_JOB = (
    "type: task\nname: {name}\nresources: {{cpu: 0.1, memory: 64MB}}\n"
    "commands: ['for i in $(seq 0 {last}); do "
    "seq -f %09.0f $((i * {lines})) $((i * {lines} + {lines} - 1)); sleep 1; done']\n"
)
_SAMPLE_SECONDS = 10.0
_MAX_MEMORY_GROWTH = 128 * _MIB
_SPARE_DISK = 64 * _MIB
_METRIC = r"^fairlead_logs_{} (\S+)$"


class Lab:
    """Controllers with the bucket behind a front, a node, and jobs that print."""

    def __init__(self, parts: Parts, front: FaultyBucket, lines: int) -> None:
        self.parts, self.front = parts, front
        self.controllers = parts.controllers(front.endpoint)
        self.printed: dict[str, int] = {}
        """The seconds for which each job prints."""
        self._lines = lines

    @property
    def env(self) -> dict[str, str]:
        urls = ",".join(one.url for one in self.controllers.all)
        return {"FAIRLEAD_URL": urls, "FAIRLEAD_TOKEN": self.controllers.token}

    def submit(self, name: str, seconds: int) -> None:
        file = self.parts.folder / f"{name}.yaml"
        file.write_text(_JOB.format(name=name, last=seconds - 1, lines=self._lines))
        run_cli("apply", "-d", "-f", file, env=self.env).succeeded()
        self.printed[name] = seconds

    def size(self, name: str) -> int:
        return self.printed[name] * self._lines * _LINE

    def follow(
        self, name: str, at: ControllerProcess, *others: ControllerProcess
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Follow a log into a file, first at that controller; what is told comes beside it."""
        file = self.parts.folder / f"{name}-{at.port}.log"
        argv = [str(Path(sys.executable).parent / "fairlead"), "logs", "-f", name]
        urls = ",".join(one.url for one in (at, *others))
        env = {**os.environ, **self.env, "FAIRLEAD_URL": urls}
        with file.open("wb") as out, file.with_suffix(".err").open("wb") as err:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=err), file

    def is_whole(self, name: str, content: Iterator[bytes]) -> bool:
        expected, found = hashlib.sha256(), hashlib.sha256()
        for second in range(self.printed[name]):
            numbers = range(second * self._lines, (second + 1) * self._lines)
            expected.update(b"".join(b"%09d\n" % number for number in numbers))
        for piece in content:
            found.update(piece)
        return expected.digest() == found.digest()

    def status(self, name: str) -> str | None:
        shown = run_cli("inspect", name, "--json", env=self.env)
        return shown.json["status"] if shown.status == 0 else None

    def job(self, name: str) -> tuple[str, int | None]:
        """Return the status and the exit code of its last attempt."""
        shown = run_cli("inspect", name, "--json", env=self.env).succeeded().json
        attempt = shown["jobs"][0]["attempts"][-1]
        return str(attempt["status"]), attempt["exit_code"]

    def ended(self, name: str) -> str:
        ends = ("done", "failed", "terminated")
        what = f"the end of {name}"
        return str(wait_until(lambda: self._among(name, ends), what=what, timeout=1200))

    def _among(self, name: str, ends: Sequence[str]) -> str | None:
        status = self.status(name)
        return status if status in ends else None

    def attempt_of(self, name: str) -> str:
        shown = run_cli("inspect", name, "--json", env=self.env).succeeded().json
        return str(shown["jobs"][0]["attempts"][-1]["id"])

    def in_bucket(self, attempt_id: str) -> Iterator[bytes]:
        """Yield what the bucket has of the log, whatever the controllers say."""
        end, is_read = 0, False
        while not is_read:
            keys = [key for key in self.parts.storage.objects() if attempt_id in key]
            decoder = Decoder()
            # The parts of a log that is over are joined meanwhile: the next list has what replaced
            # the one that is gone.
            with suppress(FileNotFoundError):
                for key in sorted(key for key in keys if key.endswith(".seg")):
                    for frame in decoder.feed(self.parts.storage.get(key)):
                        if frame.end > end:
                            yield bytes(frame.payload)[max(0, end - frame.offset) :]
                            end = frame.end
                is_read = True

    def metric(self, name: str) -> int:
        """Return the leader's metric of logs; 0 while nobody leads."""
        token = {"Authorization": f"Bearer {self.controllers.token}"}
        with suppress(OSError, AssertionError):
            asked = urllib.request.Request(f"{self.controllers.leader().url}/metrics", None, token)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                page = answer.read().decode()
                found = re.search(_METRIC.format(name), page, re.MULTILINE)
                return int(float(found[1])) if found else 0
        return 0

    def lose_the_leader(self) -> float:
        leader = self.controllers.leader()
        leader.kill9()
        shutil.rmtree(leader.data)
        began = time.monotonic()
        other = self.controllers.leader()
        seconds = time.monotonic() - began
        self.controllers.give_keys(other, leader)
        leader.start()
        return seconds


class Watched:
    """The most that memory, disks and the metric came to."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.memory: dict[str, int] = {}
        self.disk: dict[str, int] = {}
        self.waiting = 0
        self._first = self._memory()

    def growth(self) -> int:
        return max(self.growths().values())

    def growths(self) -> dict[str, int]:
        return {name: most - self._first[name] for name, most in self.memory.items()}

    def go_on_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Take samples for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self._sample()
            time.sleep(min(_SAMPLE_SECONDS, max(0.0, end - time.monotonic())))

    def _sample(self) -> None:
        self.waiting = max(self.waiting, waiting := self._lab.metric("waiting_bytes"))
        for name, now in self._memory().items():
            self.memory[name] = max(self.memory.get(name, 0), now)
        for name, folder in self._folders().items():
            self.disk[name] = max(self.disk.get(name, 0), _disk(folder))
        answered = sum(self._lab.front.answered.values())
        what = f"waiting {waiting:,}; requests {answered}; load {os.getloadavg()[0]:.1f}"
        print(f"{time.strftime('%T')} {what}", file=sys.stderr, flush=True)

    def _folders(self) -> dict[str, Path]:
        found = {str(one.port): one.data for one in self._lab.controllers.all}
        return {"node": self._lab.parts.node.data, **found}

    def _memory(self) -> dict[str, int]:
        found = {str(one.port): one.pid for one in self._lab.controllers.all}
        return {
            name: _resident(pid)
            for name, pid in {"node": self._lab.parts.node.pid, **found}.items()
        }


def _resident(pid: int) -> int:
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def _disk(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        # Files come and go meanwhile.
        with suppress(OSError):
            size += path.lstat().st_blocks * 512
    return size


def _outage(lab: Lab, watched: Watched, seconds: int) -> tuple[list[str], float]:
    """Let the bucket be away; return violations, and the seconds until the next leader led."""
    broken = []
    lab.front.change(Mode.AWAY)
    watched.go_on_for(seconds / 2)
    before = len(lab.parts.storage.objects())
    takeover = lab.lose_the_leader()
    lab.submit("late", 20)
    watched.go_on_for(seconds / 2)
    for name in ("ends", "late"):
        # Its run goes on: a run ends when each job has its final status.
        if (found := lab.job(name)) != ("terminating", 0):
            broken.append(f"the job of {name} is {found} while the bucket lacks its log")
    if len(lab.parts.storage.objects()) != before:
        broken.append("something came into the bucket while it was away")
    if watched.waiting < lab.size("ends"):
        broken.append(f"the metric told of {watched.waiting} bytes at most")
    if (refused := lab.metric("refused")) < len(lab.printed) - len(Mode):
        broken.append(f"the metric tells of {refused} logs that the bucket refuses")
    return broken, takeover


def _differences(lab: Lab, readers: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> list[str]:
    broken = []
    for name in lab.printed:
        status = lab.ended(name)
        read = run_cli("logs", name, env=lab.env)
        attempt_id = lab.attempt_of(name)
        if status != "done":
            broken.append(f"{name} is {status}")
        if not lab.is_whole(name, iter([read.output.encode()])):
            broken.append(f"the log of {name} that is read differs: {len(read.output)} bytes")
        if not lab.is_whole(name, lab.in_bucket(attempt_id)):
            broken.append(f"the log of {name} in the bucket differs")
    for process, file in readers:
        ended = process.wait(timeout=300)
        if ended != 0 or not lab.is_whole("j0", _pieces(file)):
            told = file.with_suffix(".err").read_text().strip()
            got = f"{file.stat().st_size} bytes ({file.name}), exit status {ended}"
            broken.append(f"who followed j0 got {got}: {told}")
    return broken


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_MIB):
            yield piece


def _bounds(lab: Lab, watched: Watched) -> list[str]:
    broken = []
    if watched.growth() > _MAX_MEMORY_GROWTH:
        broken.append(f"memory grew by {watched.growth():,} bytes")
    most = int(sum(map(lab.size, lab.printed)) * 1.2) + _SPARE_DISK
    for name, size in watched.disk.items():
        if size > most:
            broken.append(f"the disk of {name} came to {size:,} bytes, more than {most:,}")
    return broken


def main() -> None:
    given = _parser().parse_args()
    with ExitStack() as closing:
        parts = closing.enter_context(parts_of_peers())
        front = closing.enter_context(faulty_bucket(parts.storage.endpoint))
        lab = Lab(parts, front, given.lines)
        closing.callback(lab.controllers.close)
        lab.controllers.start()
        run_cli("node", "add", "here", "--local", parts.node.socket, env=lab.env).succeeded()
        troubled = given.slow + given.full + given.hangs + given.expired
        for number in range(given.jobs):
            lab.submit(f"j{number}", troubled + given.away + 60)
        lab.submit("ends", troubled + given.away // 4 + 30)
        leader = lab.controllers.leader()
        others = [one for one in lab.controllers.all if one is not leader]
        readers = [lab.follow("j0", leader, *others), lab.follow("j0", others[0], leader)]
        for process, _ in readers:
            closing.callback(process.kill)
        watched = Watched(lab)
        watched.go_on_for(20)
        for mode, seconds in _phases(given)[:-1]:
            front.change(mode)
            # It ends soon, and its log is to be put meanwhile.
            lab.submit(mode.name.lower(), min(5, seconds))
            watched.go_on_for(seconds)
        broken, takeover = _outage(lab, watched, given.away)
        front.change(Mode.WORKS)
        back = time.monotonic()
        lab.ended("ends")
        recovery = time.monotonic() - back
        broken += _differences(lab, readers)
        wait_until(
            lambda: not lab.metric("waiting_bytes") and not lab.metric("refused"),
            what="nothing to wait",
            timeout=60,
        )
        broken += _bounds(lab, watched)
    figures = [
        *((f"bucket {mode}: seconds", seconds) for mode, seconds in _phases(given)),
        ("jobs that print", len(lab.printed)),
        ("bytes of logs", f"{sum(map(lab.size, lab.printed)):,}"),
        ("most that waited, in bytes", f"{watched.waiting:,}"),
        ("seconds from the bucket's return to the end of a job that waited", f"{recovery:.1f}"),
        ("seconds until the next one led, while it was away", f"{takeover:.2f}"),
        *(
            (f"growth of memory of {k}", f"{n / _MIB:.0f} MiB")
            for k, n in watched.growths().items()
        ),
        *((f"disk of {name}, at most", f"{n / _MIB:.0f} MiB") for name, n in watched.disk.items()),
        ("requests to the bucket", ", ".join(f"{m}: {n}" for m, n in front.answered.items())),
        ("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"),
    ]
    conclude("a bucket that is slow, full of 503 and away", figures, broken)


def _phases(given: argparse.Namespace) -> list[tuple[Mode, int]]:
    spans = (given.slow, given.full, given.hangs, given.expired, given.away)
    modes = (Mode.SLOW, Mode.FULL, Mode.HANGS, Mode.EXPIRED, Mode.AWAY)
    return list(zip(modes, spans, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev prove bucket_outage", description=__doc__)
    for name, count, what in (
        ("away", 120, "seconds for which connections are refused"),
        ("slow", 60, "seconds for which each request takes 3 s"),
        ("full", 60, "seconds for which 9 of 10 requests get 503"),
        ("hangs", 60, "seconds for which no request is answered"),
        ("expired", 60, "seconds for which each request gets 403, as with keys that are over"),
        ("jobs", 4, "jobs that print all the time"),
        ("lines", 2000, "lines of 10 bytes that each prints in a second"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=count, metavar="N", help=f"{what} (default: %(default)s)"
        )
    return parser
