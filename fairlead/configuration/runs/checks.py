"""What is refused in every type of run: fields that contradict each other, limits that no run could
keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from os.path import commonpath, normpath

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import fields_of
from fairlead.configuration.runs.common import DisconnectFields, RetryFields, RunFields
from fairlead.configuration.runs.groups import GroupPlan
from fairlead.configuration.values.sweep import check_expressions
from fairlead.model.reasons import RetryEvent
from fairlead.wire.job import MAX_ARGUMENT, MIN_SECRET, script, script_after
from fairlead.wire.sizes import human_size

MIN_UNHEARD = 30.0
MIN_LOG_QUOTA = 1 << 20
MIN_MEMORY = 48 << 20
"""Bytes. The runner counts as the job's memory: 22 MiB, and 46 MiB with a session of SSH. With less
than 24 MiB a container was killed before its job began, with 40 MiB at the first session."""
_MARK = "/" * 255
"""Longer than the path of any mark that ends a setup."""


def check_run(
    configuration: RunFields, plans: Iterable[GroupPlan], parameters: tuple[str, ...] | None
) -> None:
    """Raise ConfigurationError for the first fault; `plans`: the groups of its jobs, `parameters`:
    the names of a sweep's parameters, None: they are in a file."""
    plans = tuple(plans)
    for planned in plans:
        _check_command(planned)
    _check_retry(configuration)
    _check_buckets(configuration)
    _check_limits(configuration)
    for planned in plans:
        _check_group(planned)
        check_expressions(_with_expressions(planned), parameters)


def _allowed(field: str) -> str:
    return fields_of(RunFields)[field].allowed


def _check_command(planned: GroupPlan) -> None:
    written = planned.written
    if written.entrypoint is not None and written.commands:
        raise ConfigurationError(
            planned.named("entrypoint"),
            "can't be given together with commands: an entrypoint runs without a shell",
            "one of the two",
        )
    if written.shell is not None and not written.commands:
        raise ConfigurationError(
            planned.named("shell"), "has no commands to run", "shell beside commands"
        )
    if written.setup and not written.commands:
        raise ConfigurationError(
            planned.named("setup"),
            "has no commands after it: it runs in the shell that runs commands",
            "setup beside commands",
        )
    if written.nvcc and written.image is not None:
        raise ConfigurationError(
            planned.named("nvcc"),
            "chooses the image with the CUDA compiler, and image chooses another",
            "nvcc or image",
        )
    nothing_to_run = written.entrypoint is None and not written.commands
    if nothing_to_run and written.image is None:
        raise ConfigurationError(
            planned.named("commands"),
            "is missing or empty: without an image of its own, the job has nothing to run",
            _allowed("commands"),
        )


def _check_retry(configuration: RunFields) -> None:
    retry = configuration.retry
    if not isinstance(retry, RetryFields) or retry.on_events is None:
        return
    for name, event in (
        ("max_failures", RetryEvent.ERROR),
        ("max_preemptions", RetryEvent.INTERRUPTION),
    ):
        if getattr(retry, name) is not None and event not in retry.on_events:
            raise ConfigurationError(
                f"retry.{name}", f"limits nothing unless retry.on_events has {event}"
            )


def _check_buckets(configuration: RunFields) -> None:
    """Refuse folders of buckets that would mix: with the image's own files, or with each other."""
    seen: list[str] = []
    for number, one in enumerate(configuration.buckets):
        path = "/" + normpath(one.path).lstrip("/")  # normpath leaves //
        field = f"buckets[{number}].path"
        if path == "/":
            raise ConfigurationError(
                field, "is the whole file system of the container", _allowed("buckets.path")
            )
        within = next((other for other in seen if commonpath((path, other)) in (path, other)), None)
        if within is not None:
            raise ConfigurationError(
                field, f"shares files with another bucket's {within}", "a folder of its own"
            )
        seen.append(path)


def _check_limits(configuration: RunFields) -> None:
    longest = configuration.max_duration
    if longest is not None and longest.seconds == 0:
        raise ConfigurationError(
            "max_duration", "would end the run at once", _allowed("max_duration")
        )
    _check_signal(configuration)
    quota = configuration.log_quota
    if quota is not None and quota < MIN_LOG_QUOTA:
        raise ConfigurationError(
            "log_quota", f"{human_size(quota)} is less than 1MiB", _allowed("log_quota")
        )
    unheard = configuration.on_disconnect
    if isinstance(unheard, DisconnectFields) and unheard.stop_after < MIN_UNHEARD:
        raise ConfigurationError(
            "on_disconnect.stop_after",
            "is less than 30s, in which a connection that broke is made again",
            _allowed("on_disconnect.stop_after"),
        )
    for name, value in (configuration.secrets or {}).items():
        _check_length(f"secrets.{name}", f"{name}={value}")
        _check_secret(f"secrets.{name}", value)


def _check_signal(configuration: RunFields) -> None:
    signal, longest = configuration.signal, configuration.max_duration
    if signal is None:
        return
    if not signal.before:
        raise ConfigurationError(
            "signal.before", "leaves no time before the stop signal", _allowed("signal.before")
        )
    if longest is not None and longest.seconds is not None and signal.before >= longest.seconds:
        raise ConfigurationError(
            "signal.before",
            "is not less than max_duration, so the signal would come when the job begins",
            "less time, or a longer max_duration",
        )


def _check_group(planned: GroupPlan) -> None:
    written = planned.written
    memory = written.resources.memory
    if memory is not None and memory < MIN_MEMORY:
        raise ConfigurationError(
            planned.named("resources.memory"),
            # 50MB is less than 48MiB, which its writer sees only in the same unit.
            f"is less than the {MIN_MEMORY >> 20}MiB ({math.ceil(MIN_MEMORY / 1e5) / 10}MB) that "
            "Fairlead's own processes need in the job's container",
            _allowed("resources.memory"),
        )
    for name, value in (written.env or {}).items():
        _check_length(planned.named(f"env.{name}"), f"{name}={value}")
    for number, word in enumerate(written.entrypoint or ()):
        _check_length(planned.named(f"entrypoint[{number}]"), word)
    # All commands are one argument of the shell, and execve(2) takes 128 KiB for one.
    longest = script(written.commands)
    if written.setup:
        longest = script_after(written.setup, _MARK, written.commands)
    _check_length(planned.named("commands"), longest)
    _check_volumes(planned)


def _with_expressions(planned: GroupPlan) -> Iterator[tuple[str, str]]:
    """Yield the strings in which parameters may stand, each with its field."""
    written = planned.written
    for name in ("setup", "commands", "entrypoint"):
        for number, text in enumerate(getattr(written, name) or ()):
            yield planned.named(f"{name}[{number}]"), text
    for name, text in (written.env or {}).items():
        yield planned.named(f"env.{name}"), text


def _check_volumes(planned: GroupPlan) -> None:
    """Refuse volumes that no node's shim would mount."""
    written = planned.written.volumes or ()
    if not written:
        return
    from fairlead.wire.container_rules import VolumeInvalid, check_volumes  # few runs ask

    mounts = [volume.mount for volume in written]
    try:
        check_volumes(mounts)
        return
    except VolumeInvalid:
        pass  # it does not tell which one: the first ones that are refused together end with it
    for number in range(len(mounts)):
        try:
            check_volumes(mounts[: number + 1])
        except VolumeInvalid as error:
            field = planned.named(f"volumes[{number}]")
            raise ConfigurationError(field, str(error)) from None


def _check_secret(field: str, value: str) -> None:
    if len(value.encode()) < MIN_SECRET or not value.strip():
        raise ConfigurationError(
            field,
            "is too short to be hidden in logs: use a longer value, or `env`",
            f"{MIN_SECRET} bytes or more, not only blanks",
        )


def _check_length(field: str, argument: str) -> None:
    if len(argument.encode()) > MAX_ARGUMENT:
        raise ConfigurationError(
            field,
            "is longer than Linux allows for a program's arguments: use `files`",
            f"{MAX_ARGUMENT} bytes, name and value or all commands together",
        )
