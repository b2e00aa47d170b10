"""Slurm on this machine, as small as it can be: munged, slurmctld and slurmd below one folder, with
its defaults but for the ports and the number of jobs.

It needs root, and `apt install slurmctld slurmd slurm-client munge`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo")
_CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/s
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
MaxArraySize=10001
MaxJobCount=20000
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=bench Nodes=ALL Default=YES State=UP
"""


def is_here() -> bool:
    """Return whether its programs are installed, and may be run."""
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


class Slurm:
    def __init__(self, env: Mapping[str, str], daemons: list[psutil.Process]) -> None:
        self._env = env
        self._daemons = daemons

    def accept(self, tasks: int) -> float:
        """Submit an array that waits, and cancel it; return the seconds of the submission."""
        began = time.perf_counter()
        self._run("sbatch", f"--array=0-{tasks - 1}", "--hold", "-o", "/dev/null", "--wrap", "true")
        seconds = time.perf_counter() - began
        self._run("scancel", "--user=root")
        return seconds

    def execute(self, tasks: int) -> float:
        """Return the seconds that an array of `true` takes to its end."""
        began = time.perf_counter()
        self._run("sbatch", "--wait", f"--array=0-{tasks - 1}", "-o", "/dev/null", "--wrap", "true")
        return time.perf_counter() - began

    def cpu(self) -> dict[str, float]:
        """Return the seconds of CPU so far. Steps, in which jobs run, are no children of slurmd."""
        used = {one.name(): sum(one.cpu_times()[:4]) for one in self._daemons}
        return {"slurmctld": used["slurmctld"], "slurmd without its steps": used["slurmd"]}

    def _run(self, *argv: str) -> None:
        subprocess.run(argv, env=dict(self._env), check=True, capture_output=True, cwd="/tmp")


@contextmanager
def started(folder: Path, cpus: int) -> Iterator[Slurm]:
    """Yield a cluster of one node that runs so many jobs at once."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    # munged makes no socket in a folder that others cannot reach.
    folder.chmod(0o755)
    key, conf = folder / "munge/key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = _CONF.format(
        host=host, folder=folder, cpus=cpus, controller=free_port(), node=free_port()
    )
    conf.write_text(text)
    env = {**os.environ, "SLURM_CONF": str(conf)}
    munge = folder / "munge"
    commands = (
        ["munged", "-F", f"--socket={munge}/s", f"--key-file={key}", f"--pid-file={munge}/pid"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    )
    commands[0].extend((f"--log-file={munge}/log", f"--seed-file={munge}/seed"))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet))
            if command[0] == "munged":
                wait_until((munge / "s").exists, what="munged")
        wait_until(lambda: _is_idle(env), what="Slurm's node")
        yield Slurm(env, [psutil.Process(one.pid) for one in running[1:]])
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def _is_idle(env: Mapping[str, str]) -> bool:
    argv = ["sinfo", "--noheader", "--format=%T"]
    output = subprocess.run(argv, env=dict(env), capture_output=True, check=False).stdout
    return output.strip() == b"idle"
