"""Batch scripts in the shapes that clusters' own pages show, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """A script, and the fields that it becomes beside its commands, or the lines that are refused.

    `notes`: the beginnings of what its user is told.
    """

    script: str
    fields: Mapping[str, Any] = MappingProxyType({})
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


SHAPES = {
    "a single GPU": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=mnist
#SBATCH --partition=gpu
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
python train.py --epochs 3
""",
        {
            "name": "mnist",
            "fleets": ["gpu"],
            "resources": {"gpu": 1, "cpu": 4, "memory": "16384MiB"},
            "env": {"SLURM_CPUS_PER_TASK": "4"},
            "max_duration": 3600,
        },
        notes=("the log is kept",),
    ),
    "an array over a file of parameters": Shape(
        """\
#!/bin/bash
#SBATCH -J sweep
#SBATCH -a 1-100%10
#SBATCH -t 30
#SBATCH -o logs/%A_%a.out
#SBATCH -c 2

LR=$(sed -n "${SLURM_ARRAY_TASK_ID}p" lrs.txt)
python train.py --lr "$LR" --out "runs/$SLURM_ARRAY_JOB_ID/$SLURM_ARRAY_TASK_ID"
""",
        {
            "name": "sweep",
            "sweep": {"matrix": {"array_task_id": "1..100"}, "max_parallel": 10},
            "resources": {"cpu": 2},
            "env": {
                "SLURM_CPUS_PER_TASK": "2",
                "SLURM_ARRAY_TASK_COUNT": "100",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_ARRAY_TASK_MAX": "100",
            },
        },
        notes=("the log is kept", "--time is that of each task"),
    ),
    "torchrun on several nodes": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=multinode-example
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export LOGLEVEL=INFO

srun torchrun \\
  --nnodes $SLURM_NNODES \\
  --nproc_per_node $SLURM_GPUS_ON_NODE \\
  --rdzv_id $SLURM_JOB_ID \\
  --rdzv_backend c10d \\
  --rdzv_endpoint $head_node_ip:29500 \\
  multinode_torchrun.py 50 10
""",
        {
            "name": "multinode-example",
            "nodes": 4,
            "share_nodes": False,
            "resources": {"gpu": 8},
        },
    ),
    "a task for each GPU, started by srun": Shape(
        """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

srun --ntasks-per-node=8 python ddp.py
""",
        refused=(
            "3: --ntasks-per-node: one job is started on each node",
            "6: srun --ntasks-per-node",
        ),
    ),
    "an srun line with options": Shape(
        """\
#!/bin/bash -l
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -t 0-00:10

srun -n 1 --mpi=none --cpu-bind=none ./simulate --steps 100
""",
        {"nodes": 1, "max_duration": 600},
    ),
    "modules of environment": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=cuda
#SBATCH --gpus=a100:1
#SBATCH --account=physics

module purge
module load cuda/12.4 gcc/13
nvcc -o saxpy saxpy.cu && ./saxpy
""",
        refused=("4: --account: there are no accounts",),
    ),
    "an environment of conda": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --gres=gpu:a100:2
#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.05-py3

source ~/miniconda3/etc/profile.d/conda.sh
conda activate llm
python finetune.py
""",
        {
            "name": "finetune",
            "resources": {"gpu": "A100:2"},
            "image": "nvcr.io/nvidia/pytorch:24.05-py3",
        },
        notes=("job.sh:7: the image must have this environment of conda",),
    ),
    "a link of a chain": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --dependency=afterok:train,afterany:clean:pack
#SBATCH --kill-on-invalid-dep=yes

python evaluate.py
""",
        {
            "name": "evaluate",
            "after": [
                {"run": "train", "when": "done"},
                {"run": "clean", "when": "ended"},
                {"run": "pack", "when": "ended"},
            ],
        },
    ),
    "a job that saves its state and comes back": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=long
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

trap 'touch save; wait; scontrol requeue $SLURM_JOB_ID' USR1
python train.py --resume latest &
wait
""",
        {
            "name": "long",
            "max_duration": 14100,
            "stop_signal": "SIGUSR1",
            "stop_duration": 300,
            "on_time_limit": "requeue",
        },
        notes=("the job comes back by itself",),
    ),
    "mail at the end": Shape(
        """\
#!/bin/bash
#SBATCH --job-name=mail
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=someone@example.org

./run.sh
""",
        refused=(
            "3: --mail-type: no mail is sent: `fairlead sbatch -W`",
            "4: --mail-user: no mail",
        ),
    ),
    "a heterogeneous job": Shape(
        """\
#!/bin/bash
#SBATCH --cpus-per-task=4 --mem-per-cpu=1g --ntasks=1
#SBATCH hetjob
#SBATCH --cpus-per-task=2 --mem-per-cpu=16g --ntasks=1

srun run.app
""",
        refused=("3: hetjob: the parts of a heterogeneous job are the `groups` of one YAML",),
    ),
}
