"""The options of sbatch: what each of them makes of a task, or what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from signal import Signals
from typing import Any

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?", re.ASCII)
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)", re.ASCII)
_SIGNAL = re.compile(r"(?:[BR]+:)?([A-Za-z]+\d?|\d{1,2})(?:@(\d+))?", re.ASCII)
_NOW = re.compile(r"now(?:\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?)?", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+", re.ASCII)
_NO_LIMIT = ("UNLIMITED", "INFINITE")
_WHEN = {"afterok": "done", "afterany": "ended", "afternotok": "failed", "after": "running"}
_ARRAY = re.compile(r"([0-9,:-]+)(?:%(\d+))?", re.ASCII)
_ARRAY_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_MAX_TASKS = 10_000
_TASK_ID = "array_task_id"
"""The parameter that `env_style: slurm` shows as SLURM_ARRAY_TASK_ID."""


class Refused(Exception):
    """A line is refused, with a sentence. `option`: the one whose line it is, if it is another than
    the present one."""

    def __init__(self, sentence: str, option: str | None = None) -> None:
        super().__init__(sentence)
        self.option = option


class Job:
    """What the lines say so far."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}
        self.notes: list[str] = []
        self.numbers: dict[str, int] = {}
        """The line of each option."""
        self.lines: dict[str, int] = {}
        """The line from which each field comes."""
        self.array: list[int] = []
        self.tasks: int | None = None
        self.per_cpu: int | None = None
        self.signal_before: int | None = None
        self.seconds: int | None = None

    def took(self, number: int, before: Mapping[str, Any]) -> None:
        """Note the line of the fields that are other than before; 0: the command line."""
        for field, value in self.fields.items():
            if before.get(field) is not value:
                self.lines.pop(field, None)
                if number:
                    self.lines[field] = number


def _name(job: Job, value: str) -> None:
    name = _NOT_IN_NAMES.sub("-", value.lower()).strip("-").lstrip("-0123456789")[:41]
    if not name:
        raise Refused(f"{value!r} has no letter: give a name that begins with one")
    if name != value:
        job.notes.append(f"the run is named {name}")
    job.fields["name"] = name


def _nodes(job: Job, value: str) -> None:
    least, _, most = value.partition("-")
    if most and most != least:
        raise Refused(f"{value!r} is a range: give one number, such as {least}")
    job.fields["nodes"] = _number(least)


def _tasks(job: Job, value: str) -> None:
    job.tasks = _number(value)


def _tasks_per_node(job: Job, value: str) -> None:
    if _number(value) != 1:
        raise Refused(
            "one job is started on each node: let it start its processes, for example with torchrun"
        )


def _cpus(job: Job, value: str) -> None:
    job.resources["cpu"] = _number(value)
    job.fields.setdefault("env", {})["SLURM_CPUS_PER_TASK"] = str(_number(value))


def _array(job: Job, value: str) -> None:
    match = _ARRAY.fullmatch(value)
    numbers: set[int] = set()
    for part in match[1].split(",") if match else ():
        found = _ARRAY_PART.fullmatch(part)
        if found is None:
            match = None
            break
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if last < first or step < 1 or (last - first) // step >= _MAX_TASKS:
            raise Refused(f"{part!r} is empty, or has more than {_MAX_TASKS:,} tasks")
        numbers |= set(range(first, last + 1, step))
    if match is None:
        raise Refused(f"{value!r} is not like 0-9, 0-15:4, 1,3,5 or 0-99%4")
    if len(numbers) > _MAX_TASKS:
        raise Refused(f"{len(numbers):,} tasks: {_MAX_TASKS:,} at most")
    job.array = sorted(numbers)
    first, last = job.array[0], job.array[-1]
    is_range = len(job.array) == last - first + 1
    ids: object = f"{first}..{last}" if is_range else job.array
    job.fields["sweep"] = {
        "matrix": {_TASK_ID: ids},
        **({"max_parallel": _number(match[2])} if match[2] else {}),
    }


def _memory(job: Job, value: str) -> None:
    if value != "0":
        job.resources["memory"] = f"{_mebibytes(value)}MiB"


def _memory_per_cpu(job: Job, value: str) -> None:
    job.per_cpu = _mebibytes(value)


def _gres(job: Job, value: str) -> None:
    match = _GRES.fullmatch(value)
    if match is None:
        raise Refused(f"{value!r} is not gpu, gpu:NUMBER or gpu:NAME:NUMBER")
    _set_gpus(job, match[1], int(match[2] or 1))


def _gpus(job: Job, value: str) -> None:
    match = _GPUS.fullmatch(value)
    if match is None:
        raise Refused(f"{value!r} is not NUMBER or NAME:NUMBER")
    _set_gpus(job, match[1], int(match[2]))


def _all_gpus(job: Job, value: str) -> None:
    if job.fields.get("nodes", 1) > 1:
        raise Refused("counts the GPUs of all nodes: write --gpus-per-node")
    _gpus(job, value)


def _set_gpus(job: Job, name: str | None, count: int) -> None:
    if count:
        job.resources["gpu"] = count if name is None else f"{name.upper()}:{count}"


def _time(job: Job, value: str) -> None:
    # sbatch(1): a limit of zero is none.
    job.seconds = None if value.upper() in _NO_LIMIT else _seconds(value) or None


def _partition(job: Job, value: str) -> None:
    job.fields["fleets"] = value.split(",")


def _dependency(job: Job, value: str) -> None:
    if "?" in value:
        raise Refused("`?` (any of them) is not known: name the runs that all must come first")
    after: list[dict[str, str]] = []
    for condition in value.split(","):
        kind, *runs = condition.split(":")
        if (kind not in _WHEN and kind != "aftercorr") or not runs:
            raise Refused(f"{kind} is not known: give {', '.join(_WHEN)} or aftercorr, and :RUN")
        for run in runs:
            name, delay, _ = run.partition("+")
            if delay:
                raise Refused(f"{run!r}: a delay is not known: give --begin, or no delay")
            one = {"run": name, "when": _WHEN.get(kind, "done")}
            after.append({**one, "job": "same"} if kind == "aftercorr" else one)
    job.fields["after"] = after


def _begin(job: Job, value: str) -> None:
    match = _NOW.fullmatch(value)
    if match is None:
        job.fields["begin"] = value
    elif match[1]:
        job.fields["begin"] = f"{match[1]}{(match[2] or 'seconds')[0]}"


def _signal(job: Job, value: str) -> None:
    match = _SIGNAL.fullmatch(value)
    if match is None:
        raise Refused(f"{value!r} is not NAME@SECONDS")
    written = match[1].upper()
    if written.isdecimal() and int(written) in set(Signals):
        written = Signals(int(written)).name
    name = "SIG" + written.removeprefix("SIG")
    job.signal_before = int(match[2] or 60)
    job.fields["signal"] = {"name": name, "before": job.signal_before}


def _no_requeue(job: Job, value: str) -> None:
    job.fields["retry"] = False


def _exclusive(job: Job, value: str) -> None:
    job.fields["share_nodes"] = False


def _folder(job: Job, value: str) -> None:
    job.fields["working_dir"] = value


def _image(job: Job, value: str) -> None:
    job.fields["image"] = value.removeprefix("docker://").replace("#", "/")


def _export(job: Job, value: str) -> None:
    for one in value.split(","):
        name, equals, content = one.partition("=")
        if equals:
            job.fields.setdefault("env", {})[name] = content
        elif name in ("ALL", "NONE", "NIL"):
            job.notes.append("your environment is not sent: name what the job needs in --export")
        else:
            job.fields.setdefault("env", {})[name] = f"${{{name}}}"


def _log(job: Job, value: str) -> None:
    job.notes.append("the log is kept with the run: `fairlead logs RUN`, also while it runs")


def _as_it_is(job: Job, value: str) -> None:
    """It is so here anyway, or only for people."""


def _number(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 1 <= int(value) <= 100_000:
        raise Refused(f"{value!r} is not a whole number of at least 1")
    return int(value)


def _mebibytes(value: str) -> int:
    match = _MEMORY.fullmatch(value)
    if match is None:
        raise Refused(f"{value!r} is not a size such as 32G")
    size, unit = int(match[1]), match[2].upper() or "M"
    return max(1, size // 1024) if unit == "K" else size * {"M": 1, "G": 1024, "T": 1 << 20}[unit]


def _seconds(value: str) -> int:
    """Return the seconds of one of Slurm's six forms of a time."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise Refused(f"{value!r} is not a time such as 2:00:00 or 1-12:00")
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        return days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)


LONG_NAMES: Mapping[str, str] = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "L": "licenses",
    "N": "nodes", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
FLAGS = frozenset({"requeue", "no-requeue", "exclusive", "parsable", "verbose", "quiet"})
WORDS = frozenset({"hetjob", "packjob"})
OPTIONS: Mapping[str, Callable[[Job, str], None]] = {
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
    "array": _array,
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
    "kill-on-invalid-dep": _as_it_is,
    "parsable": _as_it_is,
    "verbose": _as_it_is,
    "quiet": _as_it_is,
}
WITHOUT: Mapping[str, str] = {
    "account": "there are no accounts: each run is its user's",
    "qos": "give the YAML a band and a priority",
    "nice": "give the YAML a priority",
    "constraint": "give the YAML constraints on attributes of nodes, such as rack EQ r1",
    "nodelist": "give the YAML constraints: [node EQ NAME]",
    "exclude": "give the YAML constraints: [node NE NAME]",
    "mail-type": "no mail is sent: `fairlead sbatch -W` waits for the end",
    "mail-user": "no mail is sent: `fairlead sbatch -W` waits for the end",
    "hetjob": "the parts of a heterogeneous job are the `groups` of one YAML",
    "packjob": "the parts of a heterogeneous job are the `groups` of one YAML",
    "licenses": "there are no licenses",
    "deadline": "give the YAML start_before and max_duration",
}
