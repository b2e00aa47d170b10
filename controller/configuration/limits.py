"""What could be written but never run: refused before it waits for a node and fails there."""

from __future__ import annotations

from controller.configuration.errors import ConfigurationError
from controller.configuration.groups import GroupPlan, plan_groups
from controller.configuration.schema import ALLOWED, DisconnectFields, TaskConfiguration
from runner.schemas import SHORTEST_SECRET
from runner.schemas.script import LONGEST_ARGUMENT, script

LEAST_UNHEARD = 30.0
LEAST_LOG_QUOTA = 1 << 20
LEAST_MEMORY = 6 << 20
"""Bytes: with less the container engine starts nothing."""


def check_limits(configuration: TaskConfiguration) -> None:
    """Raises ConfigurationError."""
    longest = configuration.max_duration
    if longest is not None and longest.seconds == 0:
        raise ConfigurationError(
            "max_duration", "would end the run at once", ALLOWED["max_duration"]
        )
    quota = configuration.log_quota
    if quota is not None and quota < LEAST_LOG_QUOTA:
        raise ConfigurationError("log_quota", "is less than 1MiB", ALLOWED["log_quota"])
    unheard = configuration.on_disconnect
    if isinstance(unheard, DisconnectFields) and unheard.stop_after < LEAST_UNHEARD:
        raise ConfigurationError(
            "on_disconnect.stop_after",
            "is less than 30s, in which a connection that broke is made again",
            ALLOWED["on_disconnect.stop_after"],
        )
    for name, value in (configuration.secrets or {}).items():
        _check_length(f"secrets.{name}", f"{name}={value}")
        _check_secret(f"secrets.{name}", value)
    for planned in plan_groups(configuration):
        _check_group(planned)


def _check_group(planned: GroupPlan) -> None:
    written = planned.written
    memory = written.resources.memory
    if memory is not None and memory < LEAST_MEMORY:
        raise ConfigurationError(
            planned.named("resources.memory"), "is less than 6MiB", ALLOWED["resources.memory"]
        )
    for name, value in (written.env or {}).items():
        _check_length(planned.named(f"env.{name}"), f"{name}={value}")
    for number, word in enumerate(written.entrypoint or ()):
        _check_length(planned.named(f"entrypoint[{number}]"), word)
    _check_length(planned.named("commands"), script(written.commands))
    _check_volumes(planned)


def _check_volumes(planned: GroupPlan) -> None:
    """What the shim of no node would mount."""
    written = planned.written.volumes or ()
    if not written:
        return
    from shim.schemas import VolumeKind, VolumeMount  # few runs ask
    from shim.volumes.errors import VolumeError
    from shim.volumes.plan import check

    mounts: list[VolumeMount] = []
    for number, mount in enumerate(volume.mount for volume in written):
        kind, source, target = VolumeKind(mount.kind), mount.source, mount.target
        mounts.append(
            VolumeMount(kind=kind, source=source, target=target, read_only=mount.read_only)
        )
        try:
            check(mounts)
        except VolumeError as error:
            field = planned.named(f"volumes[{number}]")
            raise ConfigurationError(field, str(error)) from None


def _check_secret(field: str, value: str) -> None:
    if len(value.encode()) < SHORTEST_SECRET or not value.strip():
        raise ConfigurationError(
            field,
            "is too short to be hidden in logs: make it longer, or put it into `env`",
            f"{SHORTEST_SECRET} bytes and more, not blanks alone",
        )


def _check_length(field: str, argument: str) -> None:
    if len(argument.encode()) > LONGEST_ARGUMENT:
        raise ConfigurationError(
            field,
            "is longer than Linux lets a program be given: bring it as one of `files`",
            f"{LONGEST_ARGUMENT} bytes, name and value or all commands together",
        )
