"""A YAML file as data that still knows its lines, so that an error can name the line.

Only what JSON can hold comes out: strings, numbers, true and false, null, lists, mappings.
Everything else (tags, merge keys, aliases that multiply, a repeated key) is refused, and so is a
file that is too large or too deep to be written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import yaml

from controller.configuration.convert import ConfigurationError
from controller.configuration.yaml_errors import explained

STANDARD_INPUT = Path("-")
MAX_BYTES = 256 * 1024
MAX_VALUES = 20_000
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_IN_ENV = re.compile(r"(?:(?:groups|replicas)\[\d+\]\.)?env\.")
_LAST_PART = re.compile(r"(?:\.[^.\[\]]*|\[\d+\]|^[^.\[\]]+)$")


class SourceError(Exception):
    """The file is wrong; the message begins with `FILE:LINE:`, or `FILE:` where no line is
    known."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a file. `lines` holds the line (from 1) of each field, by its path."""

    name: str
    data: object
    lines: dict[str, int]

    def line_of(self, field: str) -> int | None:
        """Return the line of the field, or of the nearest field around it."""
        while field:
            if field in self.lines:
                return self.lines[field]
            field, cut = _LAST_PART.subn("", field)
            if not cut:
                break
        return self.lines.get("")

    def explain(self, error: ConfigurationError) -> str:
        """Return `FILE:LINE: FIELD: message (allowed: …)`."""
        line = self.line_of(error.field)
        place = self.name if line is None else f"{self.name}:{line}"
        return f"{place}: {error}"


def load(path: Path) -> Document:
    """Read a file, or standard input when the path is `-`. Raises SourceError."""
    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        with _opened(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{name}: can't be read: {error.strerror}") from None
    return read(content, name=name)


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb")


def read(content: bytes, *, name: str) -> Document:
    """Read this content. Raises SourceError."""
    if len(content) > MAX_BYTES:
        raise SourceError(f"{name}: is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SourceError(f"{name}:{line}: is not UTF-8") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        place, why = explained(text, error)
        raise SourceError(f"{name if place is None else f'{name}:{place}'}: {why}") from None
    except RecursionError:
        raise SourceError(f"{name}: is nested too deeply") from None
    reader = _Reader(name)
    data = None if node is None else reader.value(node, "", 0)
    return Document(name=name, data=data, lines=reader.lines)


class _Reader:
    def __init__(self, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._name = name
        self._values = 0
        self._scalars = yaml.SafeLoader("")

    def value(self, node: yaml.Node, path: str, depth: int) -> object:
        self._values += 1
        if self._values > MAX_VALUES:
            self._refuse(node, path, f"the file has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self._refuse(node, path, "is nested too deeply")
        self.lines.setdefault(path, _line(node))
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [
                self.value(child, f"{path}[{number}]", depth + 1)
                for number, child in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind, path)
        return self._refuse(node, path, _tag(node))

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[Any, object]:
        content: dict[Any, object] = {}
        for key_node, child in node.value:
            if key_node.tag == f"{_TAG}merge":
                self._refuse(key_node, path, "merge keys (<<) are not supported")
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, path, "the name of a field must be a string")
            key = key_node.value
            field = f"{path}.{key}" if path else key
            if key in content:
                first = self.lines[field]
                self._refuse(key_node, field, f"is given twice, first in line {first}")
            self.lines[field] = _line(key_node)
            content[key] = self.value(child, field, depth + 1)
        return content

    def _scalar(self, node: yaml.ScalarNode, kind: str, path: str) -> object:
        text: str = node.value
        if kind in ("str", "timestamp", "value") or (kind == "int" and ":" in text):
            return text
        if kind in ("int", "float") and _IN_ENV.match(path):
            return text  # 1.10 and 007 are versions and zip codes to the program that reads them
        try:
            match kind:
                case "int":
                    return int(self._scalars.construct_yaml_int(node))
                case "float" if ":" not in text:
                    return float(self._scalars.construct_yaml_float(node))
                case "float":
                    return text
                case "bool":
                    return bool(self._scalars.construct_yaml_bool(node))
                case "null":
                    return None
        except (ValueError, KeyError):
            self._refuse(node, path, "is not a value that can be read; quote it")
        return self._refuse(node, path, _tag(node))

    def _refuse(self, node: yaml.Node, path: str, message: str) -> NoReturn:
        field = f"{path}: " if path else ""
        raise SourceError(f"{self._name}:{_line(node)}: {field}{message}")


def _tag(node: yaml.Node) -> str:
    return f"has the tag {node.tag[:60]!r}; a value that begins with ! must be quoted"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


# -- what only the submitting side knows ----------------------------------------------------------

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_VARIABLE_OF_DSTACK = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", re.ASCII)


def with_environment(
    data: object, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> object:
    """Return the data completed from the user's environment.

    It sets a value for each `env` entry that is only a name, replaces `${NAME}` in `registry_auth`
    and `secrets`, and applies `overrides` to `env`. Raises ConfigurationError for a variable that
    is not set. Data of a wrong shape stays as it is: `parse` reports it.
    """
    if not isinstance(data, dict):
        return data
    filled = dict(data)
    env = _filled_env(filled.get("env"), environ)
    if overrides and (env is None or isinstance(env, dict)):
        env = {**(env or {}), **overrides}
    if env is not None:
        filled["env"] = env
    for kind in ("groups", "replicas"):
        if isinstance(groups := filled.get(kind), list):
            filled[kind] = [
                _filled_group(group, f"{kind}[{number}].", environ, overrides)
                for number, group in enumerate(groups)
            ]
    if "secrets" in filled:
        filled["secrets"] = _filled_secrets(filled["secrets"], environ)
    if isinstance(filled.get("registry_auth"), dict):
        filled["registry_auth"] = {
            name: _credential(content, f"registry_auth.{name}", environ, env)
            for name, content in filled["registry_auth"].items()
        }
    return filled


def _filled_group(
    group: object, place: str, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> object:
    """Return the group without overridden variables: these stand at the top level, and a group's
    own value would win."""
    if not isinstance(group, dict) or "env" not in group:
        return group
    env = _filled_env(group["env"], environ, place)
    if isinstance(env, dict):
        env = {name: value for name, value in env.items() if name not in overrides}
    return {**group, "env": env}


def _filled_env(env: object, environ: Mapping[str, str], place: str = "") -> object:
    if not isinstance(env, list) or not all(isinstance(entry, str) for entry in env):
        return env
    content: dict[str, str] = {}
    for number, entry in enumerate(env):
        name, equals, value = entry.partition("=")
        if not equals:
            value = _variable(name, f"{place}env[{number}]", environ)
        if name in content:
            raise ConfigurationError(f"{place}env[{number}]", f"gives {name[:60]} a second time")
        content[name] = value
    return content


def _filled_secrets(secrets: object, environ: Mapping[str, str]) -> object:
    if isinstance(secrets, list) and all(isinstance(name, str) for name in secrets):
        return {
            name: _variable(name, f"secrets[{number}]", environ)
            for number, name in enumerate(secrets)
        }
    if isinstance(secrets, dict):
        return {
            name: _substituted(content, f"secrets.{name}", environ)
            for name, content in secrets.items()
        }
    return secrets


def _substituted(content: object, field: str, environ: Mapping[str, str]) -> object:
    match = _VARIABLE.fullmatch(content) if isinstance(content, str) else None
    return content if match is None else _variable(match[1], field, environ)


def _credential(content: object, field: str, environ: Mapping[str, str], env: object) -> object:
    """Return a login's part; dstack's `${{ env.NAME }}` is a variable of the run."""
    match = _VARIABLE_OF_DSTACK.fullmatch(content) if isinstance(content, str) else None
    if match is None:
        return _substituted(content, field, environ)
    own = env.get(match[1]) if isinstance(env, dict) else None
    return own if isinstance(own, str) else _variable(match[1], field, environ)


def _variable(name: str, field: str, environ: Mapping[str, str]) -> str:
    try:
        return environ[name]
    except KeyError:
        raise ConfigurationError(
            field, f"{name[:60]!r} is not set in your environment: set it, or give a value"
        ) from None
