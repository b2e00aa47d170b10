"""Batch scripts of Slurm as tasks: what each line becomes, and what is refused by its number."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from fairlead.configuration.parse import parse
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.sbatch import PREAMBLE, SbatchError, convert


def read(*lines: str, **more: Any) -> dict[str, Any]:
    """Return the task of a script with these options; it is accepted as a configuration."""
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "true"])
    configuration = convert(text, "job.sh", **more).configuration
    parse(with_environment(configuration, {"HF_TOKEN": "x"}, {}))
    return {name: one for name, one in configuration.items() if name not in ("commands", "shell")}


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
        ("--nodes=4 --exclusive", {"nodes": 4, "share_nodes": False}),
        ("-n1", {}),
        ("-c 8", {"resources": {"cpu": 8}}),
        ("--mem=32G", {"resources": {"memory": "32768MiB"}}),
        ("--mem=4000", {"resources": {"memory": "4000MiB"}}),
        ("-c 4 --mem-per-cpu=2G", {"resources": {"cpu": 4, "memory": "8192MiB"}}),
        ("--gres=gpu:h100:2", {"resources": {"gpu": "H100:2"}}),
        ("--gres=gpu:4", {"resources": {"gpu": 4}}),
        ("-G a100:1", {"resources": {"gpu": "A100:1"}}),
        ("--gpus-per-node=8", {"resources": {"gpu": 8}}),
        ("-t 30", {"max_duration": 1800}),
        ("--time=2:30", {"max_duration": 150}),
        ("--time=1:02:03", {"max_duration": 3723}),
        ("--time 1-12:00", {"max_duration": 129600}),
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
        ("--array=0-9", "job.sh:2: --array: an array is not read"),
        ("-a 1-3", "job.sh:2: --array"),
        ("--ntasks-per-node=8", "torchrun"),
        ("-n 16", "16 tasks on 1 nodes"),
        ("-N 2 -G 4", "--gpus-per-node"),
        ("--frobnicate=3", "job.sh:2: --frobnicate: is not known here"),
        ("--mail-type=END", "no mail is sent"),
        ("-d singleton", "singleton is not known"),
        ("-d afterok:1?afterok:2", "any of them"),
        ("--time=soon", "not a time"),
        ("--mem=much", "not a size"),
        ("--gres=shard:2", "not gpu"),
        ("--signal=USR1@600 -t 5", "comes before the job begins"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_line(line: str, why: str) -> None:
    assert why in refused(line)


def test_all_wrong_lines_are_named_at_once() -> None:
    told = refused("--array=1-3", "-J ok", "--qos=high")
    assert [line.split(" ")[0] for line in told.splitlines()[:2]] == ["job.sh:2:", "job.sh:4:"]


def test_a_line_may_be_left_out_by_name() -> None:
    assert read("--mail-type=END", "-J x", ignore=["mail-type"]) == {"type": "task", "name": "x"}


def test_lines_after_the_first_command_are_comments_as_for_sbatch() -> None:
    text = "#!/bin/bash\n\n# note\n#SBATCH -J a # why\n##SBATCH -J b\necho\n#SBATCH --array=1\n"
    assert convert(text, "job.sh").configuration["name"] == "a"


def test_only_scripts_of_a_shell_are_read() -> None:
    with pytest.raises(SbatchError, match="only scripts of a shell"):
        convert("#!/usr/bin/env python3\nprint()\n", "job.py")


def test_the_script_runs_as_it_would_there() -> None:
    script = "#!/bin/bash\n#SBATCH -J x\necho $1 $SLURM_NNODES\n"
    script += "srun -n 1 --mpi=none echo $SLURM_PROCID\n"
    commands = convert(script, "job.sh", ["one two"]).configuration["commands"]
    ran = subprocess.run(
        ["bash", "-c", "\n".join(commands)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "one two 1\n0\n"
    assert commands[0].startswith(PREAMBLE)
