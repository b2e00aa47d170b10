"""Planning turns a user's configuration into the policy of its run and the specs of its jobs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.configuration.runs.job import Defaults, job_spec
from fairlead.configuration.runs.masking import public
from fairlead.configuration.runs.types import DEFINITIONS, Configuration
from fairlead.configuration.text.dstack import DIALECT
from fairlead.model.needs import Amount, Resources
from fairlead.model.service import ServicePolicy
from fairlead.model.spec import JobSpec, PlannedGroup, RunPolicy, RunType
from fairlead.model.sweep import SweepPlan
from fairlead.wire.job import BucketMode

__all__ = ["Defaults", "Plan", "kept_for_next", "to_run"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned run. `name` None: the run gets a generated one."""

    type: RunType
    name: str | None
    policy: RunPolicy
    groups: tuple[PlannedGroup, ...]
    service: ServicePolicy | None = None
    """None: no service."""
    sweep: SweepPlan | None = None
    """None: no sweep."""
    gateway: bool | str | None = None
    """The gateway that the service asks for; True: the default one; None: nothing is said."""
    configuration: dict[str, object]
    """As written, without secrets: only this form may be shown."""

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """One spec for each group: the same for all its jobs."""
        return tuple(planned.spec for planned in self.groups)


def to_run(
    configuration: Configuration,
    written: Mapping[str, object],
    defaults: Defaults,
    ssh_keys: tuple[str, ...] = (),
) -> Plan:
    """Plan the run. `written` is the data from which `configuration` was parsed. Raises
    ConfigurationError."""
    shown = public(written)
    definition = DEFINITIONS[configuration.type]
    if configuration.dialect == DIALECT:
        defaults = msgspec.structs.replace(defaults, resources=least_of_dstack(defaults.resources))
    serves = definition.serves(configuration)
    return Plan(
        type=definition.run_type,
        name=str(configuration.name) if configuration.name is not None else None,
        service=definition.service(configuration),
        gateway=definition.gateway(configuration),
        sweep=definition.sweep(configuration),
        policy=definition.policy(configuration, defaults),
        groups=tuple(
            PlannedGroup(
                group=planned.group,
                spec=job_spec(configuration, planned, defaults, ssh_keys, serves),
            )
            for planned in definition.groups(configuration)
        ),
        configuration=shown,
    )


KEPT_SECONDS = 600.0
"""A container waits so long for the next start: it holds its GPUs meanwhile."""


def kept_for_next(plan: Plan) -> Plan:
    """Return the plan of a run whose container waits for the next start (docs/rules.md 2.15), if it
    is one that can."""
    if not _can_wait(plan):
        return plan
    policy = msgspec.structs.replace(plan.policy, keeps_for=KEPT_SECONDS)
    return msgspec.structs.replace(plan, policy=policy)


def _can_wait(plan: Plan) -> bool:
    """A task of one job can wait, if its container is nobody else's and brings nothing late."""
    if plan.type is not RunType.TASK or plan.sweep is not None or len(plan.groups) != 1:
        return False
    if plan.policy.schedule or plan.policy.outputs_from or plan.policy.requeues:
        return False
    group, spec = plan.groups[0].group, plan.groups[0].spec
    writes_back = any(one.mode is BucketMode.WRITE_BACK for one in spec.buckets)
    return group.nodes == 1 and group.gang_size is None and not writes_back


def least_of_dstack(least: Resources) -> Resources:
    """Return what a job of dstack's needs at least where its file says nothing. `unset`: what
    follows the node also above a lower end, as in `memory: 8GB..`."""
    return msgspec.structs.replace(
        least,
        cpu=max(least.cpu, 2.0),
        memory=max(least.memory, 8 * 10**9),
        disk=max(least.disk, 100 * 10**9),
        unset=(Amount.CPU, Amount.MEMORY),
    )
