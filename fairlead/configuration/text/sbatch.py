"""A batch script of Slurm as the YAML of a task.

The lines `#SBATCH` before the first command become fields, as the table of
docs/coming-from-slurm.md says; the script itself becomes the command. A line that has no
counterpart is refused with its number and what to write instead. All of it is pure.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

from fairlead.configuration.text.sbatch_options import (
    FLAGS,
    LONG_NAMES,
    OPTIONS,
    WITHOUT,
    WORDS,
    Job,
    Refused,
)

_DIRECTIVE = "#SBATCH"
_SHELLS = re.compile(r"#!\s*(?:/usr/bin/env\s+)?(?:\S*/)?(bash|sh|zsh|dash)\b")
_SHEBANG_SHELL = re.compile(r"#!\s*(/\S*/(?:bash|sh|zsh|dash))\b")
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


class Converted(NamedTuple):
    """The configuration, sentences about what differs, and the line of each field that has one."""

    configuration: dict[str, Any]
    notes: tuple[str, ...]
    lines: Mapping[str, int]


def with_code(converted: Converted, folder: str) -> Converted:
    """Return the task with a copy of this folder, next to a working folder that is no place for
    it."""
    where = posixpath.normpath(str(converted.configuration.get("working_dir", CODE_FOLDER)))
    if where not in _FOLDERS_OF_SYSTEMS:
        return converted._replace(configuration={**converted.configuration, "repos": [folder]})
    repo = {"local_path": folder, "path": CODE_FOLDER}
    note = f"--chdir is {where}, so the code is in $SLURM_SUBMIT_DIR ({CODE_FOLDER})"
    return converted._replace(
        configuration={**converted.configuration, "repos": [repo]}, notes=(*converted.notes, note)
    )


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
    job, wrong = Job(), []
    try:
        shell = _shell(text)
    except Refused as error:
        raise SbatchError(_with_position(name, 0, error.option, error)) from None
    lines = [one for one in _lines(text) if one.option not in given]
    for line in (*lines, *(Line(0, option, value) for option, value in given.items())):
        if line.option in ignore:
            continue
        job.numbers[line.option] = line.number
        known = OPTIONS.get(line.option)
        before = dict(job.fields)
        try:
            if known is None:
                raise Refused(WITHOUT.get(line.option, "is not known here"))
            known(job, line.value)
            job.took(line.number, before)
        except Refused as error:
            wrong.append(_with_position(name, line.number, line.option, error))
    try:
        if not wrong:
            _complete(job, text)
    except Refused as error:
        wrong.append(
            _with_position(name, job.numbers.get(error.option or "", 0), error.option, error)
        )
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
    return Converted(configuration, tuple(dict.fromkeys(notes)), job.lines)


def _with_position(name: str, number: int, option: str | None, error: Refused) -> str:
    position = f"{name}:{number}" if number else name
    if option is None:
        return f"{position}: {error}"
    if option in WORDS:
        return f"{position}: {option}: {error}"
    shown = f"--{option}" if len(option) > 1 else f"-{option}"
    return f"{position}: {shown}: {error}"


def _commands(job: Job, text: str, arguments: Sequence[str], shell: str | None) -> list[str]:
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
        if word in WORDS:
            yield Line(number, word, "")
            continue
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
        else:
            option, equals, value = word.lstrip("-")[:1], "", word.lstrip("-")[1:].lstrip("=")
            equals = value
        if not equals and option not in FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield Line(number, LONG_NAMES.get(option, option), value)


def _shell(text: str) -> str | None:
    """Return the shell of the first line, where it is a path; None: the default."""
    first = text.splitlines()[0] if text else ""
    if not first.startswith("#!"):
        # Slurm refuses it too: the file is likely another one than the script that was meant.
        raise Refused("is not a batch script: its first line must be a shell, such as #!/bin/bash")
    if not _SHELLS.match(first):
        raise Refused(f"begins with {first}: only scripts of a shell are read")
    match = _SHEBANG_SHELL.match(first)
    return match[1] if match else None


def _complete(job: Job, text: str) -> None:
    """Fill in what follows from several lines."""
    nodes = job.fields.get("nodes", 1)
    if job.tasks is not None and job.tasks != nodes:
        raise Refused(
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


def _limit_time(job: Job) -> None:
    before, seconds = job.signal_before, job.seconds
    if seconds is None:
        return
    if before is not None and before >= seconds:
        raise Refused("comes before the job begins: give more --time", "signal")
    if not job.array:
        job.fields["max_duration"] = seconds


def _signal_at_the_end(job: Job, seconds: int) -> None:
    """Let the job end by its time limit: one that ended by itself after its signal, with exit code
    0, would be done and not come back."""
    if job.signal_before is not None:
        job.fields["stop_signal"] = job.fields.pop("signal")["name"]
        job.fields["stop_duration"] = job.signal_before
        job.fields["max_duration"] = seconds - job.signal_before


def _complete_array(job: Job, text: str) -> None:
    if _REQUEUES.search(text):
        raise Refused(
            "a task of an array does not come back after its time, so the script can't call "
            "`scontrol requeue`: give it more --time, or submit it without --array",
            "array",
        )
    first, last = job.array[0], job.array[-1]
    env = job.fields.setdefault("env", {})
    env["SLURM_ARRAY_TASK_COUNT"] = str(len(job.array))
    env["SLURM_ARRAY_TASK_MIN"], env["SLURM_ARRAY_TASK_MAX"] = str(first), str(last)


def _not_run(text: str, job: Job) -> Iterator[tuple[int, str]]:
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
