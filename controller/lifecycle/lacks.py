"""What a node lacks for a job: values, and their words for people."""

from __future__ import annotations

import msgspec

from fairlead.model.needs import GpuNeed
from fairlead.wire.amounts import UNITS, Unit
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.sizes import number, size_words


class _Lack(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Too little of something. `words` of each lack are the job's need and the node's offer."""


class LacksCpu(_Lack, frozen=True, kw_only=True, tag="cpu"):
    """Too few cores. `free` is rounded as shown, so that rounding errors of its sum change
    nothing."""

    need: float
    free: float
    total: float

    def words(self) -> tuple[str, str]:
        return f"{number(self.need)} CPU", f"{number(self.free)} free of {number(self.total)}"


class LacksAmount(_Lack, frozen=True, kw_only=True, tag="bytes"):
    """Too little of an amount that is no CPU. The tag and the name `measure` are those of stored
    reasons, from when these were memory and disk alone."""

    amount: str = msgspec.field(name="measure")
    need: int
    free: int
    total: int

    def words(self) -> tuple[str, str]:
        what = self.amount.replace("_", " ")
        if UNITS.get(self.amount) is Unit.PIECES:
            return f"{self.need} {what}", f"{self.free} free of {self.total}"
        free, total = (size_words(one, like=self.need) for one in (self.free, self.total))
        return f"{size_words(self.need)} {what}", f"{free} free of {total}"


class LacksGpus(_Lack, frozen=True, kw_only=True, tag="gpus"):
    """Too few GPUs. `free` and `total` count GPUs of the requested kind.

    `instance`: the short name of a MIG instance on the node, which only a job that names it gets.
    `other_vendor`: all GPUs of the node are this vendor's.
    """

    need: GpuNeed
    free: int
    total: int
    instance: str | None = None
    other_vendor: GpuVendor | None = None

    def words(self) -> tuple[str, str]:
        has = f"{self.free} such GPU free of {self.total}"
        if self.instance is not None:
            has += f" (MIG instances are given only by name, such as {self.instance})"
        if self.other_vendor is not None:
            name, asked = _VENDORS[self.other_vendor], f"{self.other_vendor}:{self.need.count}"
            has += f" (its GPUs are {name}'s: `gpu: {asked}` asks for those)"
        return gpu_words(self.need), has


class LacksHostNetwork(_Lack, frozen=True, kw_only=True, tag="host_network"):
    def words(self) -> tuple[str, str]:
        return (
            "the node's network, in which its peers reach it (not needed with `share_nodes: true`)",
            "a shim that gives its network to no job (--host-network never)",
        )


class LacksNetwork(_Lack, frozen=True, kw_only=True, tag="network"):
    """Too few networks of runs. `total` 0: none of the node's addresses for them is free."""

    free: int
    total: int

    def words(self) -> tuple[str, str]:
        has = f"{self.free} free of {self.total}"
        if not self.total:
            has = "no addresses for one (--job-networks of its shim names others)"
        return "a network for its run", has


class LacksPort(_Lack, frozen=True, kw_only=True, tag="port"):
    """Another job holds the port on a node whose jobs share its ports."""

    port: int

    def words(self) -> tuple[str, str]:
        has = "another job that holds it, and no network for each job"
        return f"port {self.port}", f"{has} (another `port`, or a node with Docker, would do)"


class LacksGateways(_Lack, frozen=True, kw_only=True, tag="gateways"):
    def words(self) -> tuple[str, str]:
        return (
            "to be reached by its gateway",
            "a shim that exposes nothing to gateways (`fairlead node upgrade` sets that up)",
        )


class LacksInfiniband(_Lack, frozen=True, kw_only=True, tag="infiniband"):
    def words(self) -> tuple[str, str]:
        return "InfiniBand", "no /dev/infiniband"


class LacksPermission(_Lack, frozen=True, kw_only=True, tag="permission"):
    """The operator does not allow `need`; `option`: of the shim, which would allow it."""

    need: str
    option: str

    def words(self) -> tuple[str, str]:
        return self.need, f"an operator who does not allow it (the shim's {self.option} would)"


class LacksAbilities(_Lack, frozen=True, kw_only=True, tag="engine"):
    """Its engine lacks these abilities; `engine`: its name."""

    abilities: tuple[EngineAbility, ...]
    engine: str

    def words(self) -> tuple[str, str]:
        if self.abilities == (EngineAbility.SIGNAL,):
            return (
                "an agent that sends its `signal`",
                "an older one (`fairlead node upgrade` renews it)",
            )
        fields = " and ".join(_FIELDS[one] for one in self.abilities)
        has = f"the {self.engine} engine, which has none (only a job without {fields} runs there)"
        return f"an engine with {' and '.join(self.abilities)}", has


_FIELDS = {
    EngineAbility.IMAGES: "`image`",
    EngineAbility.VOLUMES: "`volumes`",
    EngineAbility.OPTIONS: "`privileged`, `cap_add`, `ulimits`, `ssh: install` and the like",
    EngineAbility.SIGNAL: "`signal`",
}


class HasOtherJobs(_Lack, frozen=True, kw_only=True, tag="other_jobs"):
    def words(self) -> tuple[str, str]:
        return "the whole node", "other jobs on it"


class StartsTooMany(_Lack, frozen=True, kw_only=True, tag="starts"):
    """Too many jobs start there. `starting`: their number."""

    starting: int

    def words(self) -> tuple[str, str]:
        return "a free start slot", f"{self.starting} starting already"


Lack = (
    LacksCpu
    | LacksAmount
    | LacksGpus
    | LacksHostNetwork
    | LacksNetwork
    | LacksPort
    | LacksGateways
    | LacksInfiniband
    | LacksPermission
    | LacksAbilities
    | HasOtherJobs
    | StartsTooMany
)
_VENDORS = {GpuVendor.NVIDIA: "NVIDIA", GpuVendor.AMD: "AMD"}
_USUAL_VENDOR = GpuVendor.NVIDIA
"""A request means its GPUs unless it names another vendor, so its name is left out."""


def gpu_words(need: GpuNeed) -> str:
    vendor = "" if need.vendor is _USUAL_VENDOR else f"{_VENDORS[need.vendor]} "
    words = [f"{need.count} {vendor}GPU"]
    if need.names:
        words.append("named " + " or ".join(need.names))
    if need.min_memory:
        words.append(f"with {size_words(need.min_memory)}")
    if need.min_compute_capability:
        words.append(f"of compute capability {need.min_compute_capability}")
    return " ".join(words)
