"""What a job of the launcher runs. It travels by its value, so the job needs Hydra alone."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

LEFT = "hydra"
"""The end of the name of the folder with what the job wrote into its part of the sweep's folder."""


def run(
    context: HydraContext, function: TaskFunction, config: DictConfig, state: dict[Any, Any]
) -> JobReturn:
    """Run one job of the sweep. Its folder has the path that it has at the user's, so that paths
    in the configuration and in its result are right there; what is in it is left as outputs."""
    from submitit import JobEnvironment

    Singleton.set_state(state)
    setup_globals()
    environment = JobEnvironment()
    wanted = Path(str(config.hydra.sweep.dir))
    made, base = _made(wanted), wanted
    if made is None:
        base, made = Path(os.environ["FAIRLEAD_OUTPUT_DIR"]) / "sweep", []
    before = set(os.listdir(base)) if base.exists() else set()
    with read_write(config), open_dict(config):
        config.hydra.job.id = environment.job_id
        config.hydra.sweep.dir = str(base)
    done = run_job(
        hydra_context=context,
        task_function=function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    assert done.hydra_cfg is not None
    here = Path(str(done.hydra_cfg.hydra.runtime.output_dir))
    below = here.relative_to(base)
    if environment.global_rank == 0:
        left = Path(environment.paths.folder) / f"{environment.job_id}_{LEFT}"
        shutil.copytree(here, left / below, dirs_exist_ok=True)
        # A node whose jobs see its disk is left as it was found.
        if below.parts and below.parts[0] not in before:
            shutil.rmtree(base / below.parts[0], ignore_errors=True)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
    _name_as_at_home(done, here, wanted / below)
    return done


def _made(folder: Path) -> list[Path] | None:
    """Make the folder; return what was made, the innermost first. None: it may not be made."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return missing if os.access(folder, os.W_OK) else None


def _name_as_at_home(done: JobReturn, here: Path, there: Path) -> None:
    """Give the result the paths of the user's machine."""
    assert done.hydra_cfg is not None
    has_moved = done.working_dir == str(here)
    runtime = done.hydra_cfg.hydra.runtime
    done.working_dir = str(there if has_moved else runtime.cwd)
    with read_write(runtime):
        runtime.output_dir = str(there)
