"""A batch script of Slurm as the YAML of a task.

The lines `#SBATCH` before the first command become fields, as the table of
docs/coming-from-slurm.md says; the script itself becomes the command. A line that has no
counterpart is refused with its number and what to write instead. All of it is pure.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
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
_ARRAY = re.compile(r"([0-9,:-]+)(?:%(\d+))?", re.ASCII)
_ARRAY_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_MAX_TASKS = 10_000
_TASK_ID = "array_task_id"
"""The parameter that `env_style: slurm` shows as SLURM_ARRAY_TASK_ID."""
PREAMBLE = """\
srun() {
  on=
  while :; do
    case ${1-} in
      --nodelist=*) on=${1#*=}; shift ;;
      -w|--nodelist) on=$2; shift 2 ;;
      -[nNcpJoetG]|--nodes|--ntasks|--cpus-per-task|--gpus|--gres|--mem) shift 2 ;;
      --time|--output|--error|--job-name) shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  if [ -n "$on" ] && [ "${1-}" = hostname ]; then printf '%s\\n' "$on"; return; fi
  if [ -n "$on" ] && [ "$on" != "${SLURMD_NODENAME-}" ]; then return 0; fi
  "$@"
}
scontrol() {
  case "${1-} ${2-}" in
    'show hostname'*) printf '%s\\n' "${3:-$SLURM_JOB_NODELIST}" | tr ',' '\\n' ;;
    'requeue '*) ;;
    *) echo "fairlead: scontrol $*: only show hostnames and requeue are known here" >&2; return 1 ;;
  esac
}
command -v module >/dev/null 2>&1 ||
  module() { echo "fairlead: there are no modules here: module $* does nothing" >&2; }"""
"""Slurm's commands that scripts call. A task is a job here, and the script runs on each node, so
`srun` runs its command once on each; with `-w`, on that node alone."""
_END = "FAIRLEAD_END_OF_SCRIPT"
CODE_FOLDER = "/workflow"
"""Where code goes that cannot be in the working folder."""
_FOLDERS_OF_SYSTEMS = frozenset(
    ["/", "/dev", "/dev/shm", "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv"]
) | {"/tmp", "/usr", "/var", "/var/tmp"}
"""Code goes only to an empty folder, and in an image these are none."""


class Line(NamedTuple):
    """An option of the script, with the number of its line."""

    number: int
    option: str
    value: str


class SbatchError(Exception):
    """The script cannot be submitted; the message has a line for each reason, `FILE:LINE: …`."""


class _Refused(Exception):
    """A line is refused, with a sentence. `option`: the one whose line it is, if it is another than
    the present one."""

    def __init__(self, sentence: str, option: str | None = None) -> None:
        super().__init__(sentence)
        self.option = option


class Converted(NamedTuple):
    """The configuration, and sentences about what differs."""

    configuration: dict[str, Any]
    notes: tuple[str, ...]


def with_code(converted: Converted, folder: str) -> Converted:
    """Return the task with a copy of this folder, next to a working folder that is no place for
    it."""
    where = posixpath.normpath(str(converted.configuration.get("working_dir", CODE_FOLDER)))
    if where not in _FOLDERS_OF_SYSTEMS:
        return Converted({**converted.configuration, "repos": [folder]}, converted.notes)
    repo = {"local_path": folder, "path": CODE_FOLDER}
    note = f"--chdir is {where}, so the code is in $SLURM_SUBMIT_DIR ({CODE_FOLDER})"
    return Converted({**converted.configuration, "repos": [repo]}, (*converted.notes, note))


class _Job:
    """What the lines say so far."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}
        self.notes: list[str] = []
        self.numbers: dict[str, int] = {}
        """The line of each option."""
        self.array: list[int] = []
        self.tasks: int | None = None
        self.per_cpu: int | None = None
        self.signal_before: int | None = None
        self.seconds: int | None = None


def convert(
    text: str,
    name: str,
    arguments: Sequence[str] = (),
    ignore: Sequence[str] = (),
    given: Mapping[str, str] = MappingProxyType({}),
) -> Converted:
    """Return the task of this script.

    `name`: of the file, for errors. `arguments`: those of the script. `ignore`: options, without
    their hyphens, that are left out. `given`: options of the command line, which win over the lines
    of the script. Raises SbatchError.
    """
    job, wrong = _Job(), []
    try:
        shell = _shell(text)
    except _Refused as error:
        raise SbatchError(_told(name, 0, error.option, error)) from None
    lines = [one for one in _lines(text) if one.option not in given]
    for line in (*lines, *(Line(0, option, value) for option, value in given.items())):
        if line.option in ignore:
            continue
        job.numbers[line.option] = line.number
        known = _OPTIONS.get(line.option)
        try:
            if known is None:
                raise _Refused(_WITHOUT.get(line.option, "is not known here"))
            known(job, line.value)
        except _Refused as error:
            wrong.append(_told(name, line.number, line.option, error))
    try:
        if not wrong:
            _complete(job, text)
    except _Refused as error:
        wrong.append(_told(name, job.numbers.get(error.option or "", 0), error.option, error))
    wrong += [f"{name}:{number}: {sentence}" for number, sentence in _not_run(text, job)]
    if wrong:
        hint = "take the lines out, or name what may be left out with --ignore OPTION"
        raise SbatchError("\n".join([*wrong, hint]))
    configuration = {
        "type": "task",
        **job.fields,
        **({"resources": job.resources} if job.resources else {}),
        **({"shell": shell} if shell else {}),
        "commands": _commands(job, text, arguments, shell),
        "env_style": ["slurm"],
    }
    notes = (*job.notes, *_notes_on(text, name))
    return Converted(configuration, tuple(dict.fromkeys(notes)))


def _told(name: str, number: int, option: str | None, error: _Refused) -> str:
    place = f"{name}:{number}" if number else name
    if option is None:
        return f"{place}: {error}"
    if option in _WORDS:
        return f"{place}: {option}: {error}"
    shown = f"--{option}" if len(option) > 1 else f"-{option}"
    return f"{place}: {shown}: {error}"


def _commands(job: _Job, text: str, arguments: Sequence[str], shell: str | None) -> list[str]:
    """Return the script after what it needs.

    The `max_duration` of a sweep is that of all its jobs, and Slurm's --time that of each, so
    `timeout` ends the tasks of an array.
    """
    preamble = PREAMBLE
    if arguments:
        preamble += f"\nset -- {shlex.join(arguments)}"
    if not job.array or job.seconds is None:
        return [preamble, text]
    before = job.signal_before or 30
    signal = str(job.fields.get("signal", {}).get("name", "SIGTERM")).removeprefix("SIG")
    seconds = job.seconds - (job.signal_before or 0)
    program = shlex.quote(shell) if shell else "${BASH:-sh}"
    job.notes.append("--time is that of each task: one that takes longer fails with exit code 124")
    # Not through stdin: the script's own commands may read that.
    return [
        f"timeout -s {signal} -k {before} {seconds} {program} /dev/fd/3 3<<'{_END}'\n"
        f"{preamble}\n{text.rstrip(chr(10))}\n{_END}"
    ]


def _lines(text: str) -> Iterator[Line]:
    """Yield the options before the first command, as sbatch reads them."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if not line.startswith(_DIRECTIVE) or not line[len(_DIRECTIVE) :][:1].isspace():
            continue
        try:
            words = shlex.split(line[len(_DIRECTIVE) :])
        except ValueError:
            words = [line[len(_DIRECTIVE) :].strip()]
        # shlex's own comments begin within words too, as in the image HOST#NAME.
        yield from _options(number, list(takewhile(lambda word: not word.startswith("#"), words)))


def _options(number: int, words: list[str]) -> Iterator[Line]:
    while words:
        word = words.pop(0)
        if word in _WORDS:
            yield Line(number, word, "")
            continue
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
    if not first.startswith("#!"):
        # Slurm refuses it too: the file is likely another one than the script that was meant.
        raise _Refused("is not a batch script: its first line must be a shell, such as #!/bin/bash")
    if not _SHELLS.match(first):
        raise _Refused(f"begins with {first}: only scripts of a shell are read")
    match = _SHEBANG_SHELL.match(first)
    return match[1] if match else None


def _complete(job: _Job, text: str) -> None:
    """Fill in what follows from several lines."""
    nodes = job.fields.get("nodes", 1)
    if job.tasks is not None and job.tasks != nodes:
        raise _Refused(
            f"{job.tasks} tasks on {nodes} nodes: here one job is started on each node, and it "
            f"starts its own processes, for example with torchrun",
            "ntasks",
        )
    if nodes > 1 and "share_nodes" not in job.fields:
        job.fields["share_nodes"] = True
        job.notes.append(
            "jobs that share their nodes with others don't reach each other from node to node: "
            "give --exclusive where they must"
        )
    if job.per_cpu is not None:
        job.resources["memory"] = f"{job.per_cpu * job.resources.get('cpu', 1)}MiB"
    _limit_time(job)
    if job.array:
        _complete_array(job, text)
    elif _REQUEUES.search(text) and job.seconds is not None:
        _signal_at_the_end(job, job.seconds)
        job.fields["on_time_limit"] = "requeue"
        job.notes.append(
            "the job comes back by itself after --time: `scontrol requeue` does nothing"
        )
    if "signal" in job.fields:
        job.notes.append(
            f"{job.fields['signal']['name']} comes also before a drain and at a preemption, to "
            "those processes of the job that catch it; SIGTERM follows at the end"
        )


def _limit_time(job: _Job) -> None:
    before, seconds = job.signal_before, job.seconds
    if seconds is None:
        return
    if before is not None and before >= seconds:
        raise _Refused("comes before the job begins: give more --time", "signal")
    if not job.array:
        job.fields["max_duration"] = seconds


def _signal_at_the_end(job: _Job, seconds: int) -> None:
    """Let the job end by its time limit: one that ended by itself after its signal, with exit code
    0, would be done and not come back."""
    if job.signal_before is not None:
        job.fields["stop_signal"] = job.fields.pop("signal")["name"]
        job.fields["stop_duration"] = job.signal_before
        job.fields["max_duration"] = seconds - job.signal_before


def _complete_array(job: _Job, text: str) -> None:
    if _REQUEUES.search(text):
        raise _Refused(
            "a task of an array does not come back after its time, so the script can't call "
            "`scontrol requeue`: give it more --time, or submit it without --array",
            "array",
        )
    first, last = job.array[0], job.array[-1]
    env = job.fields.setdefault("env", {})
    env["SLURM_ARRAY_TASK_COUNT"] = str(len(job.array))
    env["SLURM_ARRAY_TASK_MIN"], env["SLURM_ARRAY_TASK_MAX"] = str(first), str(last)


def _not_run(text: str, job: _Job) -> Iterator[tuple[int, str]]:
    """Yield the lines of the script that would do something else here."""
    nodes = job.fields.get("nodes", 1)
    for number, line in enumerate(text.splitlines(), 1):
        match = _SRUN.match(line)
        if match is None:
            continue
        if "--container-image" in line:
            yield number, "srun --container-image: write it as a line #SBATCH --container-image"
        for asked in _SRUN_TASKS.finditer(line):
            per_node, count = asked[1] == "--ntasks-per-node", int(asked[2])
            if count > 1 and (per_node or count != nodes):
                yield (
                    number,
                    f"srun {asked[1]}: the command runs once on each node: let it start its "
                    f"processes, for example with torchrun --nproc-per-node={count}",
                )


def _notes_on(text: str, name: str) -> Iterator[str]:
    """Yield what the script expects of its image."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, sentence in _OF_THE_IMAGE:
            if pattern.match(line):
                yield f"{name}:{number}: {sentence}"


# -- one option each ------------------------------------------------------------------------------


def _name(job: _Job, value: str) -> None:
    name = _NOT_IN_NAMES.sub("-", value.lower()).strip("-").lstrip("-0123456789")[:41]
    if not name:
        raise _Refused(f"{value!r} has no letter: give a name that begins with one")
    if name != value:
        job.notes.append(f"the run is named {name}")
    job.fields["name"] = name


def _nodes(job: _Job, value: str) -> None:
    least, _, most = value.partition("-")
    if most and most != least:
        raise _Refused(f"{value!r} is a range: give one number, such as {least}")
    job.fields["nodes"] = _number(least)


def _tasks(job: _Job, value: str) -> None:
    job.tasks = _number(value)


def _tasks_per_node(job: _Job, value: str) -> None:
    if _number(value) != 1:
        raise _Refused(
            "one job is started on each node: let it start its processes, for example with torchrun"
        )


def _cpus(job: _Job, value: str) -> None:
    job.resources["cpu"] = _number(value)
    job.fields.setdefault("env", {})["SLURM_CPUS_PER_TASK"] = str(_number(value))


def _array(job: _Job, value: str) -> None:
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
            raise _Refused(f"{part!r} is empty, or has more than {_MAX_TASKS:,} tasks")
        numbers |= set(range(first, last + 1, step))
    if match is None:
        raise _Refused(f"{value!r} is not like 0-9, 0-15:4, 1,3,5 or 0-99%4")
    if len(numbers) > _MAX_TASKS:
        raise _Refused(f"{len(numbers):,} tasks: {_MAX_TASKS:,} at most")
    job.array = sorted(numbers)
    first, last = job.array[0], job.array[-1]
    is_range = len(job.array) == last - first + 1
    ids: object = f"{first}..{last}" if is_range else job.array
    job.fields["sweep"] = {
        "matrix": {_TASK_ID: ids},
        **({"max_parallel": _number(match[2])} if match[2] else {}),
    }


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
_WORDS = frozenset({"hetjob", "packjob"})
_REQUEUES = re.compile(r"^[^#\n]*\bscontrol\s+requeue\b", re.MULTILINE)
_SRUN = re.compile(r"[^#]*\bsrun\s")
_SRUN_TASKS = re.compile(r"\s(-n|--ntasks|--ntasks-per-node)[= ]?(\d+)\b", re.ASCII)
_OF_THE_IMAGE = (
    (
        re.compile(r"\s*(module|ml)\s+\w"),
        "there are no modules in a container: give an image that has the programs "
        "(#SBATCH --container-image=IMAGE)",
    ),
    (
        re.compile(r"[^#]*\b(conda|mamba|micromamba)\s+activate\b"),
        "the image must have this environment of conda (#SBATCH --container-image=IMAGE)",
    ),
)
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
_WITHOUT: Mapping[str, str] = {
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
