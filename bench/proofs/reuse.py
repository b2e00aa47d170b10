"""Thousands of tiny jobs run one after another in a few containers (docs/rules.md 11.14), while
controller and shim are killed: each set ends once with its own exit code and log, and no job sees a
process, descriptor, variable or file of another.

Some jobs leave a file, a process or a daemon behind, or fail. It needs neither root nor Docker;
with root each job has to be in a cgroup of its own, and some are killed for their memory.
With `--docker`, which needs both, it compares mounts and temporary folders too. A job that runs
again because its container was lost before its end was recorded is counted, and is no violation.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.proofs._table import conclude
from entrypoint.runtime.build import Builder
from fairlead import ApiError, Client, Result, Run
from fairlead.model.sweep import SetStatus
from fairlead.wire.frames import Decoder
from shim.node.cgroups import KernelTree
from tests.support import images
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import CHECKOUT

LEAVES_FILE, LEAVES_PROCESS, FAILS, LEAVES_TEMPORARY, LEAVES_MEMORY, LEAVES_DAEMON = (
    *(3, 5, 7, 9, 11),
    13,
)
TAKES_MEMORY = 14
EVERY = 100
"""The jobs do this whose numbers have such a remainder. All but one of these need a new container,
which takes ten times as long as a job."""
KILLED = 128 + signal.SIGKILL
LIMIT = 1 << 30
"""Bytes for all of this proof's processes on the process engine, which limits none itself."""
EXIT_CODE = 9
SECONDS_OF_A_JOB = 1.5
"""The most that is waited for. Where 30 processes wanted two cores, a job took 0.36 s."""
_LIST = """
list() {
  found=
  for one in "$1"/* "$1"/.[!.]*; do
    if [ -e "$one" ] || [ -L "$one" ]; then found="$found ${one##*/}"; fi
  done
}
"""
_JOB = f"""
echo "set $FAIRLEAD_PARAM_N"
names() {{
  while read -r _ one; do
    case $one in _=*) ;; *) printf '%s ' "${{one%%=*}}" ;; esac
  done
}}
echo "variables $(export -p | names)"
echo "left" $LEFT_BEHIND
list .
echo "files" $found
set -- /proc/$$/fd/*
echo "descriptors $#"
number=0
for one in /proc/$PPID/task/*/children; do
  read -r line < $one || true
  set -- $line
  number=$((number + $#))
done
echo "processes" $number
read -r line < /proc/$PPID/stat
set -- ${{line##*) }}
read -r root < /proc/self/mountinfo
echo "runner" $PPID ${{20}} $root
while read -r line; do
  case $line in */fairlead-*-[0-9]*) echo "leaf ${{line##*/}}" ;; esac
done < /proc/self/cgroup
echo $FAIRLEAD_PARAM_N >> $WITNESS
export LEFT_BEHIND=$FAIRLEAD_PARAM_N
case $((FAIRLEAD_PARAM_N % {EVERY})) in
  {LEAVES_FILE}) echo mine > left-$FAIRLEAD_PARAM_N ;;
  {LEAVES_PROCESS}) setsid sleep 600 > /dev/null 2>&1 & ;;
  {LEAVES_DAEMON}) (setsid sh -c '(setsid sleep 600 &)' > /dev/null 2>&1 &) ;;
  {FAILS}) exit {EXIT_CODE} ;;
  {TAKES_MEMORY}) if [ $IS_LIMITED = yes ]; then cat /dev/zero | tail -c {LIMIT << 1}; fi ;;
esac
"""
"""It starts no program unless it is to leave one: a program takes longer than all the rest."""
_IN_A_CONTAINER = f"""
mounts=
while read -r _ _ _ _ place _; do mounts="$mounts $place"; done < /proc/self/mountinfo
echo "mounts" $mounts
there=
for folder in /tmp /dev/shm; do list $folder; there="$there $found"; done
echo "temporary" $there
case $((FAIRLEAD_PARAM_N % {EVERY})) in
  {LEAVES_TEMPORARY}) echo mine > /tmp/left-$FAIRLEAD_PARAM_N ;;
  {LEAVES_MEMORY}) echo mine > /dev/shm/left-$FAIRLEAD_PARAM_N ;;
esac
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--jobs", type=int, default=10_000, metavar="N")
    add("--containers", type=int, default=4, metavar="N", help="at a time")
    add("--kills", type=int, default=6, metavar="N", help="of controller and shim, in turn")
    add("--seed", type=int, default=1, metavar="N")
    add("--docker", action="store_true", help="in containers of a Docker engine of its own")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-reuse-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        is_limited = given.docker or _limit_memory(stack)
        shim, task = _on_docker(folder, stack) if given.docker else _on_processes(folder)
        task["env"]["IS_LIMITED"] = "yes" if is_limited else "no"
        stack.callback(shim.close)
        controller = ControllerProcess(folder / "c")
        stack.callback(controller.close)
        shim.start()
        controller.start()
        controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
        seen = _run(folder, shim, controller, task, given, is_limited=is_limited)
    figures: list[tuple[str, object]] = [
        ("jobs", f"{given.jobs:,}"),
        ("jobs/s", f"{given.jobs / seen.seconds:.1f}"),
        ("kills of controller and shim", seen.kills),
        ("jobs with a cgroup of their own", f"{seen.in_leaves:,}"),
        ("jobs that ran again, unrecorded", sum(n - 1 for n in seen.runs.values())),
    ]
    conclude("jobs in used containers", figures, seen.violations(given.jobs))


_TASK: dict[str, Any] = {
    "type": "task",
    "resources": {"cpu": 0.1, "memory": "64MB"},
    "ssh": False,
    "retry": {"on_events": ["interruption"]},
}


def _limit_memory(stack: ExitStack) -> bool:
    """Limit the memory of this process and of all that it starts; return whether that works here.

    The kernel kills the largest of them, which is a job that takes all that there is.
    """
    me = str(os.getpid())
    for place in KernelTree().places(os.getpid()):
        outside = Path(place.folder)
        folder = outside / f"proof-of-reuse-{me}"
        try:
            folder.mkdir()
        except OSError:
            continue
        stack.callback(folder.rmdir)
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists():
                (folder / name).write_text(str(LIMIT))
                (folder / "cgroup.procs").write_text(me)
                stack.callback((outside / "cgroup.procs").write_text, me)
                return True
    return False


def _on_processes(folder: Path) -> tuple[ShimProcess, dict[str, Any]]:
    env = {"WITNESS": str(folder / "witness")}
    return ShimProcess(folder / "n", "process"), {**_TASK, "commands": [_LIST, _JOB], "env": env}


def _on_docker(folder: Path, stack: ExitStack) -> tuple[ShimProcess, dict[str, Any]]:
    (folder / "docker").mkdir()
    docker = DockerDaemon(folder / "docker")
    stack.callback(docker.stop)
    docker.start()
    image = docker.import_image("busybox:reuse", images.busybox_root(folder / "busybox"))
    runtime = Builder(CHECKOUT, CHECKOUT / ".build").build()
    shim = ShimProcess(folder / "n", "docker", "--runtime", runtime, env=docker.env)
    # A container does not see the folder in which starts are counted.
    where = {"image": image, "working_dir": "/work", "env": {"WITNESS": "/dev/null"}}
    return shim, {**_TASK, **where, "commands": [_LIST, _IN_A_CONTAINER, _JOB]}


class Seen(msgspec.Struct, kw_only=True):
    """`logs`: the lines of each set's job by their first words; `runs`: how often each began."""

    seconds: float
    kills: int
    results: list[Result]
    logs: dict[int, dict[str, str]]
    runs: Counter[int]
    is_limited: bool
    has_leaves: bool

    @property
    def in_leaves(self) -> int:
        return sum(bool(log.get("leaf")) for log in self.logs.values())

    def _wrong_leaves(self) -> Iterator[str]:
        """A shim that was killed brings none for a while."""
        leaves = Counter(log["leaf"] for log in self.logs.values() if log.get("leaf"))
        # A shim that was started again has removed them all, and counts from 0 once more.
        most = 1 + self.kills // 2
        for leaf, jobs in leaves.items():
            if jobs > most or " " in leaf:
                yield f"{jobs} jobs were in the cgroups {leaf}"
        without = len(self.logs) - self.in_leaves
        if self.has_leaves and not self.kills and without:
            yield f"{without} jobs had no cgroup of their own"

    def violations(self, jobs: int) -> Iterator[str]:
        numbers = Counter(one.parameters["n"] for one in self.results)
        if sorted(map(int, numbers)) != list(range(jobs)) or max(numbers.values()) > 1:
            yield f"{len(numbers)} of {jobs} sets have ended, some of them {max(numbers.values())}x"
        for one in self.results:
            yield from _wrong_end(one, is_limited=self.is_limited)
        yield from self._wrong_leaves()
        for line in ("variables", "descriptors", "processes", "mounts"):
            found = Counter(log.get(line) for log in self.logs.values())
            if len(found) > 1:
                yield f"jobs do not see the same {line}: {found.most_common(3)}"
        for number, log in self.logs.items():
            if log.get("set") != str(number):
                yield f"the log of set {number} is of set {log.get('set')}"
            for line in ("left", "files", "temporary"):
                if log.get(line):
                    yield f"set {number} sees {line} {log[line]}"


def _wrong_end(one: Result, *, is_limited: bool) -> Iterator[str]:
    number = int(one.parameters["n"])
    wanted: tuple[SetStatus, int | None] = (SetStatus.DONE, 0)
    if number % EVERY == FAILS:
        wanted = (SetStatus.FAILED, EXIT_CODE)
    elif is_limited and number % EVERY == TAKES_MEMORY:
        wanted = (SetStatus.FAILED, KILLED)
        if "memory limit" not in (one.message or ""):
            yield f"set {one.number} was killed for its memory, and its message says: {one.message}"
    if (one.status, one.exit_code) != wanted:
        yield f"set {one.number} is {one.status} with exit code {one.exit_code}: {one.message}"


def _run(
    folder: Path,
    shim: ShimProcess,
    controller: ControllerProcess,
    task: dict[str, Any],
    given: argparse.Namespace,
    *,
    is_limited: bool,
) -> Seen:
    over = threading.Event()
    with Client(controller.url, controller.token) as client:
        began = time.monotonic()
        run = client.sweep(
            task,
            {"n": list(range(given.jobs))},
            max_parallel=given.containers,
            reuse_container=True,
        )
        killer = _Killer(shim, controller, run, given, over)
        killer.start()
        try:
            run.wait(timeout=300 + SECONDS_OF_A_JOB * given.jobs, check=False)
        finally:
            over.set()
            killer.join()
        seconds = time.monotonic() - began
        results = list(run.results())
        logs = {one.number: _log(controller.data / "logs", one.attempt or "") for one in results}
    witness = folder / "witness"
    runs = Counter(map(int, witness.read_text().split())) if witness.exists() else Counter[int]()
    return Seen(
        seconds=seconds,
        kills=killer.kills,
        results=results,
        logs=logs,
        runs=runs,
        is_limited=is_limited,
        has_leaves=KernelTree().why_none(KernelTree().places(os.getpid())) is None,
    )


class _Killer(threading.Thread):
    """Kills the daemons, one after the other, at random shares of the work."""

    def __init__(
        self,
        shim: ShimProcess,
        controller: ControllerProcess,
        run: Run,
        given: argparse.Namespace,
        over: threading.Event,
    ) -> None:
        super().__init__()
        self.kills = 0
        chance = random.Random(given.seed)
        self._at = sorted(chance.uniform(0.05, 0.9) * given.jobs for _ in range(given.kills))
        self._victims = (controller, shim)
        self._run, self._over = run, over

    def run(self) -> None:
        for at in self._at:
            while self._ended() < at:
                if self._over.wait(0.2):
                    return
            self._victims[self.kills % 2].restart()
            self.kills += 1

    def _ended(self) -> int:
        # 503: a disk that other work keeps busy lets the database wait.
        with suppress(ApiError):
            self._run.refresh()
        sweep = self._run.state.sweep
        assert sweep is not None
        return sweep.done + sweep.failed


def _log(folder: Path, attempt_id: str) -> dict[str, str]:
    decoder, text = Decoder(), b""
    for path in sorted((folder / attempt_id[:2] / attempt_id).glob("*.seg")):
        text += b"".join(frame.payload for frame in decoder.feed(path.read_bytes()))
    lines = (line.partition(" ") for line in text.decode().splitlines())
    found = {word: rest for word, _, rest in lines}
    if "mounts" in found:
        # Docker mounts the volumes of each container in an order of its own.
        found["mounts"] = " ".join(sorted(found["mounts"].split()))
    if "temporary" in found:
        # The runner's own, as long as its container.
        kept = (one for one in found["temporary"].split() if not one.startswith("fairlead-"))
        found["temporary"] = " ".join(kept)
    return found


if __name__ == "__main__":
    main()
