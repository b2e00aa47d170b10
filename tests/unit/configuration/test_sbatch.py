"""Batch scripts of Slurm as tasks: what each line becomes, and what is refused by its number."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.sbatch import SbatchError, convert, with_code
from fairlead.configuration.text.source import Document
from tests.unit.configuration.sbatch_corpus import SHAPES, Shape

_ALWAYS = ("commands", "shell", "env_style")


def read(*lines: str, **more: Any) -> dict[str, Any]:
    """Return the task of a script with these options; it is accepted as a configuration."""
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "true"])
    configuration = convert(text, "job.sh", **more).configuration
    parse(with_environment(configuration, {"HF_TOKEN": "x"}, {}))
    return {name: one for name, one in configuration.items() if name not in _ALWAYS}


def refused(*lines: str) -> str:
    with pytest.raises(SbatchError) as caught:
        read(*lines)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--job-name=train", {"name": "train"}),
        ("-J My_Train.2", {"name": "my-train-2"}),
        ("-N 4", {"nodes": 4, "share_nodes": True}),
        ("--nodes=4-4", {"nodes": 4, "share_nodes": True}),
        ("--nodes=4 --exclusive", {"nodes": 4, "share_nodes": False}),
        ("-n1", {}),
        ("-c 8", {"resources": {"cpu": 8}, "env": {"SLURM_CPUS_PER_TASK": "8"}}),
        ("--mem=32G", {"resources": {"memory": "32768MiB"}}),
        ("--mem=4000", {"resources": {"memory": "4000MiB"}}),
        (
            "-c 4 --mem-per-cpu=2G",
            {
                "resources": {"cpu": 4, "memory": "8192MiB"},
                "env": {"SLURM_CPUS_PER_TASK": "4"},
            },
        ),
        ("--gres=gpu:h100:2", {"resources": {"gpu": "H100:2"}}),
        ("--gres=gpu:4", {"resources": {"gpu": 4}}),
        ("-G a100:1", {"resources": {"gpu": "A100:1"}}),
        ("--gpus-per-node=8", {"resources": {"gpu": 8}}),
        ("-t 30", {"max_duration": 1800}),
        ("--time=2:30", {"max_duration": 150}),
        ("--time=1:02:03", {"max_duration": 3723}),
        ("--time 1-12:00", {"max_duration": 129600}),
        ("--time=0", {}),
        ("--time=UNLIMITED", {}),
        (
            "--signal=10@60 -t 10",
            {"signal": {"name": "SIGUSR1", "before": 60}, "max_duration": 600},
        ),
        ("-p gpus,big", {"fleets": ["gpus", "big"]}),
        ("--requeue", {}),
        ("--no-requeue", {"retry": False}),
        ("-D /data", {"working_dir": "/data"}),
        ("--begin=2026-12-01T08:00Z", {"begin": "2026-12-01T08:00Z"}),
        ("--begin=now+2hours", {"begin": "2h"}),
        ("--begin=now", {}),
        ("--export=NONE,LR=0.1,HF_TOKEN", {"env": {"LR": "0.1", "HF_TOKEN": "${HF_TOKEN}"}}),
        ("--container-image=docker://ubuntu:24.04", {"image": "ubuntu:24.04"}),
        ("-d afterok:prepare", {"after": [{"run": "prepare", "when": "done"}]}),
        (
            "--dependency=afterany:a:b,aftercorr:c",
            {
                "after": [
                    {"run": "a", "when": "ended"},
                    {"run": "b", "when": "ended"},
                    {"run": "c", "when": "done", "job": "same"},
                ]
            },
        ),
        (
            "--signal=B:USR1@120 -t 10",
            {"signal": {"name": "SIGUSR1", "before": 120}, "max_duration": 600},
        ),
        ("--output=log-%j.out -e err", {}),
    ],
)
def test_a_line_becomes_fields(line: str, expected: dict[str, Any]) -> None:
    assert read(line) == {"type": "task", **expected}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--array=9-0", "job.sh:2: --array: '9-0' is empty"),
        ("--array=0-20000", "10,000 tasks"),
        ("-a some", "job.sh:2: --array: 'some' is not like"),
        ("hetjob", "job.sh:2: hetjob: the parts"),
        ("--ntasks-per-node=8", "torchrun"),
        ("-n 16", "job.sh:2: --ntasks: 16 tasks on 1 nodes"),
        ("-N 2-4", "job.sh:2: --nodes: '2-4' is a range: give one number, such as 2"),
        ("-N 2 -G 4", "--gpus-per-node"),
        ("--frobnicate=3", "job.sh:2: --frobnicate: is not known here"),
        ("--mail-type=END", "no mail is sent"),
        ("-d singleton", "singleton is not known"),
        ("-d after:prepare+5", "job.sh:2: --dependency: 'prepare+5': a delay is not known"),
        ("-d afterok:1?afterok:2", "any of them"),
        ("--time=soon", "not a time"),
        ("--mem=much", "not a size"),
        ("--gres=shard:2", "not gpu"),
        ("--signal=USR1@600 -t 5", "job.sh:2: --signal: comes before the job begins"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_line(line: str, why: str) -> None:
    assert why in refused(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-d afterok:12:13", "job.sh:3: after[0].run: '12' is neither the name nor the id"),
        ("-d afterok:", "job.sh:3: after[0].run: '' is neither"),
        ("--begin=16:00", "job.sh:3: begin: '16:00' is neither a time with its zone"),
        ("--begin=2026-12-01T08:00", "job.sh:3: begin: '2026-12-01T08:00' has no time zone"),
        ("--signal=B:KILL@60", "job.sh:3: signal.name: SIGKILL is never seen"),
        ("--signal=99@60", "job.sh:3: signal.name: 'SIG99' is not a signal"),
    ],
)
def test_what_no_field_takes_is_told_with_its_line(line: str, why: str) -> None:
    text = f"#!/bin/bash\n#SBATCH -J train\n#SBATCH {line}\ntrue\n"
    converted = convert(text, "job.sh")
    document = Document(name="job.sh", data=converted.configuration, lines=dict(converted.lines))
    with pytest.raises(ConfigurationError) as caught:
        parse(document.data)
    assert document.explain(caught.value).startswith(why)


def test_a_field_of_the_command_line_has_no_line() -> None:
    text = "#!/bin/bash\n#SBATCH -J a\n#SBATCH -t 1\n"
    assert convert(text, "job.sh", given={"job-name": "b"}).lines == {}


def test_all_wrong_lines_are_named_at_once() -> None:
    told = refused("--array=x", "-J ok", "--qos=high")
    assert [line.split(" ")[0] for line in told.splitlines()[:2]] == ["job.sh:2:", "job.sh:4:"]


def test_a_line_may_be_left_out_by_name() -> None:
    assert read("--mail-type=END", "-J x", ignore=["mail-type"]) == {"type": "task", "name": "x"}


def test_lines_after_the_first_command_are_comments_as_for_sbatch() -> None:
    text = "#!/bin/bash\n\n# note\n#SBATCH -J a # why\n##SBATCH -J b\necho\n#SBATCH --array=1\n"
    assert convert(text, "job.sh").configuration["name"] == "a"


def test_only_scripts_of_a_shell_are_read() -> None:
    with pytest.raises(SbatchError, match="only scripts of a shell"):
        convert("#!/usr/bin/env python3\nprint()\n", "job.py")
    for text in ("fair-1\n", "", "SBATCH -N 1\n#!/bin/bash\n"):
        with pytest.raises(SbatchError, match="is not a batch script"):
            convert(text, "hostname")


def sweep_of(array: str) -> Any:
    return read(f"--array={array}")["sweep"]


def test_an_array_is_a_sweep_over_its_task_ids() -> None:
    assert sweep_of("0-9%4") == {"matrix": {"array_task_id": "0..9"}, "max_parallel": 4}
    assert sweep_of("3") == {"matrix": {"array_task_id": "3..3"}}
    assert sweep_of("0-8:4,1,1") == {"matrix": {"array_task_id": [0, 1, 4, 8]}}
    env = read("--array=0-8:4")["env"]
    assert env == {
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_MIN": "0",
        "SLURM_ARRAY_TASK_MAX": "8",
    }


def test_jobs_that_share_nodes_are_said_not_to_reach_each_other() -> None:
    (note,) = convert("#!/bin/bash\n#SBATCH -N 2\ntrue\n", "job.sh").notes
    assert "--exclusive" in note
    assert convert("#!/bin/bash\n#SBATCH -N 2 --exclusive\ntrue\n", "job.sh").notes == ()


def test_the_options_of_the_command_win_over_the_lines() -> None:
    made = read("--array=x", given={"array": "0-1", "dependency": "afterok:a"})
    assert made["sweep"]["matrix"] == {"array_task_id": "0..1"}
    assert made["after"] == [{"run": "a", "when": "done"}]


@pytest.mark.parametrize(
    ("option", "repos"),
    [
        ("-J x", ["/code"]),
        ("-D /home/me/project", ["/code"]),
        ("--chdir=/tmp", [{"local_path": "/code", "path": "/workflow"}]),
        ("--chdir=/var/tmp/", [{"local_path": "/code", "path": "/workflow"}]),
    ],
)
def test_code_goes_to_a_folder_that_can_be_empty(option: str, repos: list[object]) -> None:
    made = with_code(convert(f"#!/bin/bash\n#SBATCH {option}\ntrue\n", "job.sh"), "/code")
    assert made.configuration["repos"] == repos
    assert any("SLURM_SUBMIT_DIR" in note for note in made.notes) == (repos != ["/code"])


def test_a_task_of_an_array_gets_its_signal_before_its_time_and_before_a_drain() -> None:
    lines = "#SBATCH --array=0-3 -t 10 --signal=B:USR1@60 --begin=now+2hours\n"
    made = convert(f"#!/bin/bash\n{lines}true\n", "job.sh").configuration
    assert made["commands"][0].startswith("timeout -s USR1 -k 60 540 ")
    assert (made["signal"], made["begin"]) == ({"name": "SIGUSR1", "before": 60}, "2h")
    assert "max_duration" not in made
    assert to_run(parse(made), made, Defaults()).sweep is not None


def test_a_job_that_asks_to_be_requeued_comes_back() -> None:
    script = "#!/bin/bash\n#SBATCH --signal=B:USR1@60 -t 10 --requeue\n"
    script += "trap 'scontrol requeue $SLURM_JOB_ID' USR1\n"
    made = convert(script, "job.sh").configuration
    assert (made["on_time_limit"], made["max_duration"]) == ("requeue", 540)
    array = script.replace("--requeue", "--array=0-3")
    with pytest.raises(SbatchError, match=r"job\.sh:2: --array: .*scontrol requeue"):
        convert(array, "job.sh")


def ran(script: str, *arguments: str, **env: str) -> str:
    configuration = convert(script, "job.sh", arguments).configuration
    command = "\n".join(configuration["commands"])
    given = {"PATH": os.environ["PATH"], **configuration.get("env", {}), **env}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=given
    )
    return f"{done.stdout}{done.stderr}{done.returncode}"


def test_the_script_runs_as_it_would_there() -> None:
    script = "#!/bin/bash\n#SBATCH -J x\necho $1 $SLURM_NNODES\n"
    script += "srun -n 1 --mpi=none echo $SLURM_PROCID\n"
    told = ran(script, "one two", SLURM_NNODES="1", SLURM_PROCID="0")
    assert told == "one two 1\n0\n0"


def test_srun_on_a_named_node_runs_there_alone() -> None:
    script = "#!/bin/bash\nnodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\n"
    script += 'srun --nodes=1 -w "${nodes[0]}" hostname --ip-address\n'
    script += 'srun -w "${nodes[1]}" echo only the second\n'
    both = {"SLURM_JOB_NODELIST": "10.0.0.1,10.0.0.2"}
    first = ran(script, SLURMD_NODENAME="10.0.0.1", **both)
    second = ran(script, SLURMD_NODENAME="10.0.0.2", **both)
    assert (first, second) == ("10.0.0.1\n0", "10.0.0.1\nonly the second\n0")


def test_each_task_of_an_array_has_the_whole_time() -> None:
    script = "#!/bin/bash\n#SBATCH --array=0-1 -t 0:01\necho $1 $SLURM_ARRAY_TASK_ID\ncat\n"
    command = convert(script, "job.sh", ["a"]).configuration["commands"]
    assert command[0].startswith("timeout -s TERM -k 30 1 /bin/bash /dev/fd/3 3<<")
    assert ran(script + "sleep 30\n", "a", SLURM_ARRAY_TASK_ID="4") == "a 4\n124"
    assert "max_duration" not in read("--array=0-1 -t 10")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_usual_shape_is_taken_or_refused_by_its_lines(shape: Shape) -> None:
    if shape.refused:
        with pytest.raises(SbatchError) as caught:
            convert(shape.script, "job.sh")
        *lines, hint = str(caught.value).splitlines()
        assert "--ignore" in hint
        assert len(lines) == len(shape.refused)
        for line, expected in zip(lines, shape.refused, strict=True):
            assert line.startswith(f"job.sh:{expected}")
        return
    configuration, notes, _ = convert(shape.script, "job.sh")
    parse(configuration)
    beside = {name: one for name, one in configuration.items() if name not in (*_ALWAYS, "type")}
    assert beside == shape.fields
    assert len(notes) == len(shape.notes)
    for note, begins in zip(notes, shape.notes, strict=True):
        assert note.startswith(begins)


def test_there_are_ten_usual_shapes() -> None:
    assert len(SHAPES) >= 10
