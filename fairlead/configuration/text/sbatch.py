"""A batch script of Slurm as the YAML of a task.

The lines `#SBATCH` before the first command become fields, as the table of
docs/coming-from-slurm.md says; the script itself becomes the command. A line that has no
counterpart is refused with its number and what to write instead. All of it is pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_DIRECTIVE = "#SBATCH"
_SHELLS = re.compile(r"#!\s*(?:/usr/bin/env\s+)?(?:\S*/)?(bash|sh|zsh|dash)\b")
_SHEBANG_SHELL = re.compile(r"#!\s*(/\S*/(?:bash|sh|zsh|dash))\b")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?", re.ASCII)
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)", re.ASCII)
_SIGNAL = re.compile(r"(?:[BR]+:)?([A-Za-z]+\d?)(?:@(\d+))?", re.ASCII)
_NOW = re.compile(r"now(?:\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?)?", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+", re.ASCII)
_WHEN = {"afterok": "done", "afterany": "ended", "afternotok": "failed", "after": "running"}
PREAMBLE = """\
export SLURM_JOB_ID=$FAIRLEAD_RUN_ID SLURM_JOBID=$FAIRLEAD_RUN_ID
export SLURM_JOB_NAME=$FAIRLEAD_RUN_NAME SLURM_SUBMIT_DIR=$PWD
export SLURM_NNODES=${FAIRLEAD_NODES_NUM:-1} SLURM_JOB_NUM_NODES=${FAIRLEAD_NODES_NUM:-1}
export SLURM_NTASKS=${FAIRLEAD_NODES_NUM:-1} SLURM_NODEID=${FAIRLEAD_NODE_RANK:-0}
export SLURM_PROCID=${FAIRLEAD_NODE_RANK:-0} SLURM_LOCALID=0
srun() {
  while :; do
    case ${1-} in
      -n|-N|-c|-w|-p|-J|-o|-e|-t|-G) shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  "$@"
}"""
"""What the script expects of Slurm, made of the job's own variables. A task is a job here, so
`srun` runs its command once on each node."""


class Line(NamedTuple):
    """An option of the script, with the number of its line."""

    number: int
    option: str
    value: str


class SbatchError(Exception):
    """The script cannot be submitted; the message has a line for each reason, `FILE:LINE: …`."""


class _Refused(Exception):
    """A line is refused, with a sentence."""


class Converted(NamedTuple):
    """The configuration, and sentences about what differs."""

    configuration: dict[str, Any]
    notes: tuple[str, ...]


class _Job:
    """What the lines say so far."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}
        self.notes: list[str] = []
        self.tasks: int | None = None
        self.per_cpu: int | None = None
        self.signal_before: int | None = None
        self.seconds: int | None = None


def convert(
    text: str, name: str, arguments: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Converted:
    """Return the task of this script.

    `name`: of the file, for errors. `arguments`: those of the script. `ignore`: options, without
    their hyphens, that are left out. Raises SbatchError.
    """
    job, wrong = _Job(), []
    for line in _lines(text):
        if line.option in ignore:
            continue
        known = _OPTIONS.get(line.option)
        try:
            if known is None:
                raise _Refused(_WITHOUT.get(line.option, "is not known here"))
            known(job, line.value)
        except _Refused as error:
            shown = f"--{line.option}" if len(line.option) > 1 else f"-{line.option}"
            wrong.append(f"{name}:{line.number}: {shown}: {error}")
    try:
        shell = _shell(text)
        _complete(job)
    except _Refused as error:
        wrong.append(f"{name}: {error}")
    if wrong:
        hint = "take the lines out, or name what may be left out with --ignore OPTION"
        raise SbatchError("\n".join([*wrong, hint]))
    preamble = PREAMBLE
    if arguments:
        preamble += f"\nset -- {shlex.join(arguments)}"
    configuration = {
        "type": "task",
        **job.fields,
        **({"resources": job.resources} if job.resources else {}),
        **({"shell": shell} if shell else {}),
        "commands": [preamble, text],
    }
    return Converted(configuration, tuple(dict.fromkeys(job.notes)))


def _lines(text: str) -> Iterator[Line]:
    """Yield the options before the first command, as sbatch reads them."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if not line.startswith(_DIRECTIVE) or not line[len(_DIRECTIVE) :][:1].isspace():
            continue
        try:
            words = shlex.split(line[len(_DIRECTIVE) :], comments=True)
        except ValueError:
            words = [line[len(_DIRECTIVE) :].strip()]
        yield from _options(number, words)


def _options(number: int, words: list[str]) -> Iterator[Line]:
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
        else:
            option, equals, value = word.lstrip("-")[:1], "", word.lstrip("-")[1:].lstrip("=")
            equals = value
        if not equals and option not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield Line(number, _LONG.get(option, option), value)


def _shell(text: str) -> str | None:
    """Return the shell of the first line, where it is a path; None: the default."""
    first = text.splitlines()[0] if text else ""
    if first.startswith("#!") and not _SHELLS.match(first):
        raise _Refused(f"begins with {first}: only scripts of a shell are read")
    match = _SHEBANG_SHELL.match(first)
    return match[1] if match else None


def _complete(job: _Job) -> None:
    """Fill in what follows from several lines."""
    nodes = job.fields.get("nodes", 1)
    if job.tasks is not None and job.tasks != nodes:
        raise _Refused(
            f"{job.tasks} tasks on {nodes} nodes: here one job is started on each node, and it "
            f"starts its own processes, for example with torchrun"
        )
    if nodes > 1 and "share_nodes" not in job.fields:
        job.fields["share_nodes"] = True
    if job.per_cpu is not None:
        job.resources["memory"] = f"{job.per_cpu * job.resources.get('cpu', 1)}MiB"
    before, seconds = job.signal_before, job.seconds
    if seconds is not None:
        if before is not None and before >= seconds:
            raise _Refused("--signal comes before the job begins: give more --time")
        job.fields["max_duration"] = seconds


# -- one option each ------------------------------------------------------------------------------


def _name(job: _Job, value: str) -> None:
    name = _NOT_IN_NAMES.sub("-", value.lower()).strip("-").lstrip("-0123456789")[:41]
    if not name:
        raise _Refused(f"{value!r} has no letter: give a name that begins with one")
    if name != value:
        job.notes.append(f"the run is named {name}")
    job.fields["name"] = name


def _nodes(job: _Job, value: str) -> None:
    job.fields["nodes"] = _number(value)


def _tasks(job: _Job, value: str) -> None:
    job.tasks = _number(value)


def _tasks_per_node(job: _Job, value: str) -> None:
    if _number(value) != 1:
        raise _Refused(
            "one job is started on each node: let it start its processes, for example with torchrun"
        )


def _cpus(job: _Job, value: str) -> None:
    job.resources["cpu"] = _number(value)


def _memory(job: _Job, value: str) -> None:
    if value != "0":
        job.resources["memory"] = f"{_mebibytes(value)}MiB"


def _memory_per_cpu(job: _Job, value: str) -> None:
    job.per_cpu = _mebibytes(value)


def _gres(job: _Job, value: str) -> None:
    match = _GRES.fullmatch(value)
    if match is None:
        raise _Refused(f"{value!r} is not gpu, gpu:NUMBER or gpu:NAME:NUMBER")
    _set_gpus(job, match[1], int(match[2] or 1))


def _gpus(job: _Job, value: str) -> None:
    match = _GPUS.fullmatch(value)
    if match is None:
        raise _Refused(f"{value!r} is not NUMBER or NAME:NUMBER")
    _set_gpus(job, match[1], int(match[2]))


def _all_gpus(job: _Job, value: str) -> None:
    if job.fields.get("nodes", 1) > 1:
        raise _Refused("counts the GPUs of all nodes: write --gpus-per-node")
    _gpus(job, value)


def _set_gpus(job: _Job, name: str | None, count: int) -> None:
    if count:
        job.resources["gpu"] = count if name is None else f"{name.upper()}:{count}"


def _time(job: _Job, value: str) -> None:
    job.seconds = _seconds(value)


def _partition(job: _Job, value: str) -> None:
    job.fields["fleets"] = value.split(",")


def _dependency(job: _Job, value: str) -> None:
    if "?" in value:
        raise _Refused("`?` (any of them) is not known: name the runs that all must come first")
    after: list[dict[str, str]] = []
    for condition in value.split(","):
        kind, *runs = condition.split(":")
        if (kind not in _WHEN and kind != "aftercorr") or not runs:
            raise _Refused(f"{kind} is not known: give {', '.join(_WHEN)} or aftercorr, and :RUN")
        for run in runs:
            one = {"run": run.partition("+")[0], "when": _WHEN.get(kind, "done")}
            after.append({**one, "job": "same"} if kind == "aftercorr" else one)
    job.fields["after"] = after


def _begin(job: _Job, value: str) -> None:
    match = _NOW.fullmatch(value)
    if match is None:
        job.fields["begin"] = value
    elif match[1]:
        job.fields["begin"] = f"{match[1]}{(match[2] or 'seconds')[0]}"


def _signal(job: _Job, value: str) -> None:
    match = _SIGNAL.fullmatch(value)
    if match is None:
        raise _Refused(f"{value!r} is not NAME@SECONDS")
    name = "SIG" + match[1].upper().removeprefix("SIG")
    job.signal_before = int(match[2] or 60)
    job.fields["signal"] = {"name": name, "before": job.signal_before}
    job.notes.append(
        f"{name} comes also before a drain and at a preemption, to those processes of the job that "
        "catch it; SIGTERM follows at the end"
    )


def _no_requeue(job: _Job, value: str) -> None:
    job.fields["retry"] = False


def _exclusive(job: _Job, value: str) -> None:
    job.fields["share_nodes"] = False


def _folder(job: _Job, value: str) -> None:
    job.fields["working_dir"] = value


def _image(job: _Job, value: str) -> None:
    job.fields["image"] = value.removeprefix("docker://").replace("#", "/")


def _export(job: _Job, value: str) -> None:
    for one in value.split(","):
        name, equals, content = one.partition("=")
        if equals:
            job.fields.setdefault("env", {})[name] = content
        elif name in ("ALL", "NONE", "NIL"):
            job.notes.append("your environment is not sent: name what the job needs in --export")
        else:
            job.fields.setdefault("env", {})[name] = f"${{{name}}}"


def _log(job: _Job, value: str) -> None:
    job.notes.append("the log is kept with the run: `fairlead logs RUN`, also while it runs")


def _as_it_is(job: _Job, value: str) -> None:
    """It is so here anyway, or only for people."""


def _number(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 1 <= int(value) <= 100_000:
        raise _Refused(f"{value!r} is not a whole number of at least 1")
    return int(value)


def _mebibytes(value: str) -> int:
    match = _MEMORY.fullmatch(value)
    if match is None:
        raise _Refused(f"{value!r} is not a size such as 32G")
    size, unit = int(match[1]), match[2].upper() or "M"
    return max(1, size // 1024) if unit == "K" else size * {"M": 1, "G": 1024, "T": 1 << 20}[unit]


def _seconds(value: str) -> int:
    """Return the seconds of one of Slurm's six forms of a time."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise _Refused(f"{value!r} is not a time such as 2:00:00 or 1-12:00")
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        return days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)


_LONG: Mapping[str, str] = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "L": "licenses",
    "N": "nodes", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
_FLAGS = frozenset({"requeue", "no-requeue", "exclusive", "parsable", "verbose", "quiet"})
_OPTIONS: Mapping[str, Callable[[_Job, str], None]] = {
    "job-name": _name,
    "nodes": _nodes,
    "ntasks": _tasks,
    "ntasks-per-node": _tasks_per_node,
    "cpus-per-task": _cpus,
    "mem": _memory,
    "mem-per-cpu": _memory_per_cpu,
    "gres": _gres,
    "gpus": _all_gpus,
    "gpus-per-node": _gpus,
    "gpus-per-task": _gpus,
    "time": _time,
    "partition": _partition,
    "dependency": _dependency,
    "begin": _begin,
    "signal": _signal,
    "requeue": _as_it_is,
    "no-requeue": _no_requeue,
    "exclusive": _exclusive,
    "chdir": _folder,
    "container-image": _image,
    "export": _export,
    "output": _log,
    "error": _log,
    "open-mode": _as_it_is,
    "comment": _as_it_is,
    "parsable": _as_it_is,
    "verbose": _as_it_is,
    "quiet": _as_it_is,
}
_WITHOUT: Mapping[str, str] = {
    "array": "an array is not read: write the YAML, with `nodes: N` and `gang: false`",
    "account": "there are no accounts: each run is its user's",
    "qos": "give the YAML a band and a priority",
    "constraint": "give the YAML constraints on attributes of nodes, such as rack EQ r1",
    "nodelist": "give the YAML constraints: [node EQ NAME]",
    "exclude": "give the YAML constraints: [node NE NAME]",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "licenses": "there are no licenses",
    "deadline": "give the YAML start_before and max_duration",
}
