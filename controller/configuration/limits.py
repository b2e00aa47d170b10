"""What could be written but never run: refused before it waits for a node and fails there."""

from __future__ import annotations

from controller.configuration.errors import ConfigurationError
from controller.configuration.schema import ALLOWED, TaskConfiguration
from runner.schemas.script import LONGEST_ARGUMENT, script

LEAST_MEMORY = 6 << 20
"""Bytes: with less the container engine starts nothing."""


def check_limits(configuration: TaskConfiguration) -> None:
    """Raises ConfigurationError."""
    longest = configuration.max_duration
    if longest is not None and longest.seconds == 0:
        raise ConfigurationError(
            "max_duration", "would end the run at once", ALLOWED["max_duration"]
        )
    memory = configuration.resources.memory
    if memory is not None and memory < LEAST_MEMORY:
        raise ConfigurationError(
            "resources.memory", "is less than 6MiB", ALLOWED["resources.memory"]
        )
    _check_arguments(configuration)


def _check_arguments(configuration: TaskConfiguration) -> None:
    for field, variables in (("env", configuration.env), ("secrets", configuration.secrets)):
        for name, value in (variables or {}).items():
            _check_length(f"{field}.{name}", f"{name}={value}")
    for number, word in enumerate(configuration.entrypoint or ()):
        _check_length(f"entrypoint[{number}]", word)
    _check_length("commands", script(configuration.commands))


def _check_length(field: str, argument: str) -> None:
    if len(argument.encode()) > LONGEST_ARGUMENT:
        raise ConfigurationError(
            field,
            "is longer than Linux lets a program be given: bring it as one of `files`",
            f"{LONGEST_ARGUMENT} bytes, name and value or all commands together",
        )
