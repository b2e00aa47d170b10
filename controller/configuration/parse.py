"""Parsing turns data of YAML or JSON into a checked configuration, or one sentence about one field.

It raises only ConfigurationError, whatever the data is.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from os.path import commonpath, normpath

from controller.configuration.convert import ConfigurationError, check_content, convert
from controller.configuration.dev_environments import check_dev_environment, plan_job
from controller.configuration.dstack import translated
from controller.configuration.groups import GroupPlan, check_groups, check_limits, plan_groups
from controller.configuration.schema import (
    ALLOWED,
    DEV_ENVIRONMENT_ALLOWED,
    SERVICE_ALLOWED,
    DevEnvironmentConfiguration,
    RetryFields,
    RunFields,
    ServiceConfiguration,
    TaskConfiguration,
)
from controller.configuration.services import check_service, plan_replicas
from controller.configuration.units import shown
from controller.configuration.values import make
from controller.lifecycle.model import RetryEvent, RunType

__all__ = ["Configuration", "ConfigurationError", "TaskConfiguration", "parse"]

Configuration = TaskConfiguration | ServiceConfiguration | DevEnvironmentConfiguration


def parse(data: object) -> Configuration:
    """Return the configuration. Raises ConfigurationError for the first error."""
    if not isinstance(data, dict):
        what = "a configuration is a mapping of fields to values"
        why = f"is empty; {what}" if data is None else f"{what}, not {shown(data)}"
        raise ConfigurationError("", why, "type: task")
    check_content(data)
    data = translated(data).data
    configuration: Configuration
    match _type(data):
        case RunType.SERVICE:
            configuration = convert(data, ServiceConfiguration, make, allowed=SERVICE_ALLOWED)
            check_service(configuration)
            plans = plan_replicas(configuration)
        case RunType.DEV_ENVIRONMENT:
            configuration = convert(
                data, DevEnvironmentConfiguration, make, allowed=DEV_ENVIRONMENT_ALLOWED
            )
            check_dev_environment(configuration)
            plans = plan_job(configuration)
        case RunType.TASK:
            configuration = convert(data, TaskConfiguration, make)
            check_groups(configuration)
            plans = plan_groups(configuration)
    for planned in plans:
        _check_command(planned)
    _check_retry(configuration)
    _check_buckets(configuration)
    check_limits(configuration, plans)
    return configuration


_NO_RUNS = {
    "fleet": "describes hosts and no run: `fairlead apply` takes such a file",
    "gateway": "describes a gateway and no run: `fairlead apply` takes such a file",
    "volume": "needs no file: a named volume is made on the node of a job that names it",
}


def _type(data: Mapping[str, object]) -> RunType:
    given = data.get("type")
    if given is None:
        names = {name.lower(): name for name in data if name != "type"}
        alike = get_close_matches("type", names, n=1)
        meant = f"; {names[alike[0]]} is not a field" if alike else ""
        raise ConfigurationError("type", f"is missing{meant}", ALLOWED["type"])
    for supported in RunType:
        if given == supported.value:
            return supported
    if isinstance(given, str) and given in _NO_RUNS:
        raise ConfigurationError("type", f"{given} {_NO_RUNS[given]}", ALLOWED["type"])
    alike = get_close_matches(str(given).lower(), RunType, n=1)
    meant = f"; did you mean {alike[0]}?" if alike else ""
    raise ConfigurationError("type", f"{shown(given)} is not known{meant}", ALLOWED["type"])


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
            "is missing: without an own image there is nothing to run",
            ALLOWED["commands"],
        )


def _check_buckets(configuration: RunFields) -> None:
    """Refuse folders of buckets that would mix: with the image's own files, or with each other."""
    seen: list[str] = []
    for number, one in enumerate(configuration.buckets):
        path = "/" + normpath(one.path).lstrip("/")  # normpath leaves //
        field = f"buckets[{number}].path"
        if path == "/":
            raise ConfigurationError(
                field, "is the whole file system of the container", ALLOWED["buckets.path"]
            )
        within = next((other for other in seen if commonpath((path, other)) in (path, other)), None)
        if within is not None:
            raise ConfigurationError(
                field, f"shares files with another bucket's {within}", "a folder of its own"
            )
        seen.append(path)


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
