"""Whether the kernel killed for want of memory, as the cgroup counts it (v2 and v1)."""

from __future__ import annotations

from pathlib import Path

from runner.cgroup import UNIFIED, Cgroup


def oom_kills(root: Path = Path("/")) -> int:
    """Kills by the kernel's memory limit in our cgroup since it exists; 0 when nobody counts."""
    cgroup = Cgroup(root)
    places = ((UNIFIED, "memory.events"), ("memory", "memory.oom_control"))
    counts = (cgroup.field(controller, name, "oom_kill") for controller, name in places)
    return next((count for count in counts if count is not None), 0)
