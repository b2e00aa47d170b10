"""Parsing turns data of YAML or JSON into a checked configuration, or one sentence about one field.

It raises only ConfigurationError, whatever the data is.
"""

from __future__ import annotations

from controller.configuration.convert import ConfigurationError, check_content, convert
from controller.configuration.dstack import translated
from controller.configuration.groups import GroupPlan, check_groups, check_limits, plan_groups
from controller.configuration.schema import ALLOWED, RetryFields, TaskConfiguration
from controller.configuration.units import shown
from controller.configuration.values import make
from controller.lifecycle.model import RetryEvent, RunType

__all__ = ["ConfigurationError", "TaskConfiguration", "parse"]


def parse(data: object) -> TaskConfiguration:
    """Return the configuration. Raises ConfigurationError for the first error."""
    if not isinstance(data, dict):
        raise ConfigurationError(
            "", f"a configuration is a mapping of fields to values, not {shown(data)}", "type: task"
        )
    check_content(data)
    data = translated(data).data
    _check_type(data.get("type"))
    configuration = convert(data, TaskConfiguration, make)
    check_groups(configuration)
    for planned in plan_groups(configuration):
        _check_command(planned)
    _check_retry(configuration)
    check_limits(configuration)
    return configuration


def _check_type(given: object) -> None:
    if given is None:
        raise ConfigurationError("type", "is missing", ALLOWED["type"])
    if given in (RunType.SERVICE.value, RunType.DEV_ENVIRONMENT.value):
        raise ConfigurationError("type", f"{given} is not supported yet", ALLOWED["type"])
    if given != RunType.TASK.value:
        raise ConfigurationError("type", f"{shown(given)} is not known", ALLOWED["type"])


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
    nothing_to_run = written.entrypoint is None and not written.commands
    if nothing_to_run and written.image is None:
        raise ConfigurationError(
            planned.named("commands"),
            "is missing: without an own image there is nothing to run",
            ALLOWED["commands"],
        )


def _check_retry(configuration: TaskConfiguration) -> None:
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
