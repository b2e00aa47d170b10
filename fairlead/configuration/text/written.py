"""Writes a configuration as a person would: YAML in which commands of several lines are blocks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import yaml

_WIDTH = 100
_BREAKS = frozenset("\x85\u2028\u2029")
"""Line breaks of Unicode that are none in a configuration."""


class _Dumper(yaml.SafeDumper):
    """Writes a string of several lines as a literal block, where YAML allows it."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _BREAKS.intersection(text):
        style = '"'  # PyYAML writes them as they are, and reads them back as spaces
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def as_yaml(configuration: Mapping[str, object]) -> str:
    """Return the configuration as YAML, in its own order; it reads back as the same."""
    plain = msgspec.to_builtins(configuration, str_keys=True)
    return yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
    ).rstrip()
