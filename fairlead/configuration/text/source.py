"""A YAML file as data that still knows its lines, so that an error can name the line.

Only what JSON can hold comes out: strings, numbers, true and false, null, lists, mappings.
Everything else (tags, merge keys, aliases that multiply, a repeated key) is refused, and so is a
file that is too large or too deep to be written by hand.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import yaml

from fairlead.configuration.errors import ConfigurationError

STANDARD_INPUT = Path("-")
MAX_BYTES = 256 * 1024
MAX_VALUES = 20_000
MAX_DEPTH = 32
MAX_CHARACTERS = 4 << 20
"""Of all values and of their paths together: aliases make gigabytes of a long name, too."""

_MAX_BRACKETS = 2 * MAX_DEPTH
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
        location = self.name if line is None else f"{self.name}:{line}"
        return f"{location}: {error}"


def load(path: Path) -> Document:
    """Read a file, or standard input when the path is `-`. Raises SourceError."""
    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        with _opened(path) as file:
            # Standard input, or a device, may never end.
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
        # Editors on Windows begin a file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SourceError(f"{name}:{line}: is not UTF-8") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        from fairlead.configuration.text.yaml_errors import explained  # few files are wrong

        location, why = explained(text, error)
        raise SourceError(f"{name if location is None else f'{name}:{location}'}: {why}") from None
    # PyYAML calls itself for each level, and some hundred `- ` are enough.
    except (RecursionError, _TooDeep):
        raise SourceError(f"{name}: is nested too deeply") from None
    reader = _Reader(name)
    data = None if node is None else reader.value(node, "", 0)
    return Document(name=name, data=data, lines=reader.lines)


class _TooDeep(Exception):
    """More brackets are open than are ever read."""


class _Loader(yaml.SafeLoader):
    """Each open bracket could begin a name. PyYAML looks at all of them for each token, and took
    5 s for 8000 `{`."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level > _MAX_BRACKETS:
            raise _TooDeep
        super().fetch_flow_collection_start(token)


class _Reader:
    def __init__(self, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._name = name
        self._values = 0
        self._characters = 0
        self._scalars = yaml.SafeLoader("")
        self._around: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: str, depth: int) -> object:
        # Aliases that name lists of aliases make gigabytes of a few lines ("billion laughs").
        self._values += 1
        if self._values > MAX_VALUES:
            self._refuse(node, path, f"the file has more than {MAX_VALUES} values")
        if any(node is one for one in self._around):
            self._refuse(node, path, "is an alias (*) of what it is in")
        if depth > MAX_DEPTH:
            self._refuse(node, path, "is nested too deeply")
        is_scalar = isinstance(node, yaml.ScalarNode)
        self._characters += len(path) + (len(node.value) if is_scalar else 0)
        if self._characters > MAX_CHARACTERS:
            self._refuse(node, "", "aliases (*) make too much of this file")
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, node.tag.removeprefix(_TAG), path)
        self._around.append(node)
        content = self._collection(node, path, depth)
        self._around.pop()
        return content

    def _collection(self, node: yaml.Node, path: str, depth: int) -> object:
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [
                self.value(child, f"{path}[{number}]", depth + 1)
                for number, child in enumerate(node.value)
            ]
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
        # YAML 1.1 reads 12:30:45 as a number of base 60, and gives a bare = a tag of its own.
        if kind in ("str", "timestamp", "value") or (kind == "int" and ":" in text):
            return text
        if kind in ("int", "float") and _IN_ENV.match(path):
            return text  # 1.10 and 007 are versions and zip codes to the program that reads them
        try:
            match kind:
                case "int":
                    number = int(self._scalars.construct_yaml_int(node))
                    str(number)  # has a limit (ValueError), which a number in hex has not
                    return number
                case "float" if ":" not in text:
                    return float(self._scalars.construct_yaml_float(node))
                case "float":
                    return text
                case "bool":
                    return bool(self._scalars.construct_yaml_bool(node))
                case "null":
                    return None
        # PyYAML resolves tags by patterns that allow more than its constructors take, such as 0x_.
        # Behind a tag that is written, as `!!int ""`, they look for a first character.
        except (ValueError, LookupError):
            self._refuse(node, path, "is not a value that can be read; quote it")
        return self._refuse(node, path, _tag(node))

    def _refuse(self, node: yaml.Node, path: str, message: str) -> NoReturn:
        field = f"{path}: " if path else ""
        raise SourceError(f"{self._name}:{_line(node)}: {field}{message}")


def _tag(node: yaml.Node) -> str:
    return f"has the tag {node.tag[:60]!r}; a value that begins with ! must be quoted"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
