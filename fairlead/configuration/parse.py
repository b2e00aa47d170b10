"""Parsing turns data of YAML or JSON into a checked configuration, or one sentence about one field.

It raises only ConfigurationError, whatever the data is.
"""

from __future__ import annotations

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.task import TaskConfiguration
from fairlead.configuration.runs.types import Configuration, definition_of
from fairlead.configuration.text.content import check_content
from fairlead.configuration.text.dstack import translated
from fairlead.configuration.values.units import shown

__all__ = ["Configuration", "ConfigurationError", "TaskConfiguration", "parse"]


def parse(data: object) -> Configuration:
    """Return the configuration. Raises ConfigurationError for the first error."""
    if not isinstance(data, dict):
        what = "a configuration is a mapping of fields to values"
        why = f"is empty; {what}" if data is None else f"{what}, not {shown(data)}"
        raise ConfigurationError("", why, "type: task")
    check_content(data)
    ours = translated(data).data
    configuration: Configuration = definition_of(ours).read(ours)
    return configuration
