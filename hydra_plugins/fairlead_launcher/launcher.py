"""The launcher: each job of Hydra's sweep becomes a job of one run."""

from __future__ import annotations

import importlib
import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.fairlead_launcher import in_job

if TYPE_CHECKING:
    from submitit import Job

_log = logging.getLogger(__name__)
_PACKAGE = "hydra_plugins.fairlead_launcher"
_OF_THE_EXECUTOR = ("folder", "max_num_timeout", "python")


class FairleadLauncher(Launcher):
    """Runs the jobs of a sweep on Fairlead, and brings what they leave into the sweep's folder."""

    def __init__(self, **parameters: Any) -> None:
        self._parameters = parameters
        self._config: DictConfig | None = None
        self._function: TaskFunction | None = None
        self._context: HydraContext | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what the jobs run."""
        self._config = config
        self._context = hydra_context
        self._function = task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs and return their results, in their order."""
        import cloudpickle

        from fairlead.integrations.submitit import FairleadExecutor

        assert self._config is not None
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        sweep = Path(str(self._config.hydra.sweep.dir)).absolute()
        sweep.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {
            name: OmegaConf.to_container(one) if OmegaConf.is_config(one) else one
            for name, one in self._parameters.items()
        }
        executor = FairleadExecutor(**{name: given.pop(name) for name in _OF_THE_EXECUTOR})
        executor.update_parameters(**{name: one for name, one in given.items() if one is not None})
        functions = [
            self._job(number, overrides, sweep)
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        # A job may have Hydra, and need not have Fairlead.
        cloudpickle.register_pickle_by_value(importlib.import_module(_PACKAGE))
        _log.info(f"Fairlead launches {len(functions)} jobs, which write into {sweep}")
        jobs = executor.submit_array(functions)
        return [self._result(job, sweep) for job in jobs]

    def _job(self, number: int, overrides: Sequence[str], sweep: Path) -> partial[JobReturn]:
        assert self._context is not None
        assert self._config is not None
        assert self._function is not None
        _log.info(f"\t#{number} : {' '.join(filter_overrides(overrides))}")
        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
            config.hydra.sweep.dir = str(sweep)
        state = Singleton.get_state()
        return partial(in_job.run, self._context, self._function, config, state)

    def _result(self, job: Job[Any], sweep: Path) -> JobReturn:
        job.wait()
        left = Path(job.paths.folder) / f"{job.job_id}_{in_job.LEFT}"
        if left.exists():
            shutil.copytree(left, sweep, dirs_exist_ok=True)
            shutil.rmtree(left)
        result = job.results()[0]
        assert isinstance(result, JobReturn)
        return result
