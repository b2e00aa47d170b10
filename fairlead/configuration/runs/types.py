"""The types of run that there are, each with its definition."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.common import TYPES_ALLOWED
from fairlead.configuration.runs.definition import RunDefinition
from fairlead.configuration.runs.dev_environment import (
    DEV_ENVIRONMENT,
    DevEnvironmentConfiguration,
)
from fairlead.configuration.runs.service import SERVICE, ServiceConfiguration
from fairlead.configuration.runs.task import TASK, TaskConfiguration
from fairlead.configuration.values.units import shown

Configuration: TypeAlias = TaskConfiguration | ServiceConfiguration | DevEnvironmentConfiguration
DEFINITIONS: Mapping[str, RunDefinition[Any]] = {
    definition.run_type.value: definition for definition in (TASK, SERVICE, DEV_ENVIRONMENT)
}
_NO_RUNS = {
    "fleet": "describes hosts and no run: `fairlead apply` takes such a file",
    "gateway": "describes a gateway and no run: `fairlead apply` takes such a file",
    "volume": "needs no file: a named volume is made on the node of a job that names it",
}


def definition_of(data: Mapping[str, object]) -> RunDefinition[Any]:
    """Return the definition of the type that the file names. Raises ConfigurationError."""
    given = data.get("type")
    if given is None:
        names = {name.lower(): name for name in data if name != "type"}
        alike = get_close_matches("type", names, n=1)
        meant = f"; {names[alike[0]]} is not a field" if alike else ""
        raise ConfigurationError("type", f"is missing{meant}", TYPES_ALLOWED)
    if isinstance(given, str) and given in DEFINITIONS:
        return DEFINITIONS[given]
    if isinstance(given, str) and given in _NO_RUNS:
        raise ConfigurationError("type", f"{given} {_NO_RUNS[given]}", TYPES_ALLOWED)
    # `fairlead apply` takes files of fleets and gateways, too.
    alike = get_close_matches(str(given).lower(), [*DEFINITIONS, "fleet", "gateway"], n=1)
    meant = f"; did you mean {alike[0]}?" if alike else ""
    raise ConfigurationError("type", f"{shown(given)} is not known{meant}", TYPES_ALLOWED)
