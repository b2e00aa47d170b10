"""Batch scripts of Slurm, run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import ControllerProcess
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

ARRAY = """\
#!/bin/bash
#SBATCH --job-name=array
#SBATCH --array=2-6:2%2
#SBATCH --time=1
#SBATCH --cpus-per-task=1

echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_CPUS_PER_TASK CPU for $1"
srun -n 1 bash -c 'test "$SLURM_PROCID" = 0 && test $SLURM_JOB_ID -ge $SLURM_ARRAY_JOB_ID'
"""
AFTER = """\
#!/bin/bash
#SBATCH --job-name=after
echo "$SLURM_JOB_NAME on $(scontrol show hostnames), $SLURM_NTASKS task"
"""


def script(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_an_array_runs_and_what_depends_on_it_after_it(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    array = script(tmp_path, "array.sh", ARRAY)
    after = script(tmp_path, "after.sh", AFTER)
    name = controller.cli("sbatch", array, "me").succeeded().output.strip()
    controller.cli("sbatch", "-d", f"afterok:{name}", after).succeeded()
    status = controller.cli("attach", "after")
    assert "after on 127.0.0.1, 1 task" in status.succeeded().output
    run = controller.cli("inspect", name, "--json").succeeded().json
    assert (run["status"], run["sweep"]["done"]) == ("done", 3)
    logs = [controller.cli("logs", name, str(number)).output.strip() for number in range(3)]
    assert logs == [f"task {task} of 3, 1 CPU for me" for task in (2, 4, 6)]


def test_a_task_of_an_array_that_takes_too_long_fails_alone(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    text = "#!/bin/bash\n#SBATCH -J slow -a 0-1 -t 0:10\n"
    text += '[ "$SLURM_ARRAY_TASK_ID" = 0 ] || sleep 60\n'
    controller.cli("sbatch", script(tmp_path, "slow.sh", text)).succeeded()

    def ended() -> object:
        run = controller.cli("inspect", "slow", "--json").succeeded().json
        return run if run["status"] in ("done", "failed") else None

    run: object = wait_until(ended, LONG, "the end of the array")
    assert isinstance(run, dict)
    assert (run["status"], run["sweep"]["done"], run["sweep"]["failed"]) == ("failed", 1, 1)
