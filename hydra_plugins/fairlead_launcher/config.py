"""What `hydra.launcher` may say, when the launcher is Fairlead's."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional  # noqa: UP035

from hydra.core.config_store import ConfigStore

# OmegaConf reads the types of a dataclass, and Hydra imports a plugin outside of sys.modules, where
# annotations that are strings can't be looked up: so they are neither strings nor of a new kind.


@dataclass
class FairleadLauncherConf:
    """The parameters of submitit's executor `fairlead` (docs/submitit.md)."""

    _target_: str = "hydra_plugins.fairlead_launcher.launcher.FairleadLauncher"
    folder: str = "${hydra.sweep.dir}/.fairlead"
    """A folder of this machine for pickles and logs."""
    name: str = "${hydra.job.name}"
    timeout_min: int = 60
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: Optional[int] = None  # noqa: UP045
    gpus_per_node: Optional[int] = None  # noqa: UP045
    gpu: Optional[str] = None  # noqa: UP045
    mem_gb: Optional[float] = None  # noqa: UP045
    image: Optional[str] = None  # noqa: UP045
    python: str = "python3"
    """The command of Python in the job, which must have Hydra."""
    setup: List[str] = field(default_factory=list)  # noqa: UP006
    code: Optional[str] = None  # noqa: UP045
    """A folder that the job gets as its working folder, such as `.`."""
    array_parallelism: Optional[int] = None  # noqa: UP045
    max_num_timeout: int = 0
    signal_delay_s: int = 90
    state: Optional[str] = None  # noqa: UP045
    task: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """More fields of a task, as in its YAML."""


ConfigStore.instance().store(
    group="hydra/launcher", name="fairlead", node=FairleadLauncherConf, provider="fairlead"
)
