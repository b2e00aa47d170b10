"""What runs in a job's container, as whom, where and with which variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from signal import Signals
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field
from fairlead.configuration.values.units import shown

Text = Annotated[str, msgspec.Meta(min_length=1), Field("a string")]
STRING: dict[str, Any] = {"type": "string"}
STRINGS: dict[str, Any] = {"type": "array", "items": STRING}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_PYTHON = re.compile(r"3\.\d{1,2}(?:\.\d{1,2})?", re.ASCII)
_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL"})
_SSH_CHOICES = frozenset({"auto", "embedded", "install", "off"})


class Argv(tuple[str, ...]):
    """A program and its arguments."""

    __slots__ = ()
    ALLOWED = "a list of a program and its arguments, or one line of them"
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [STRING, {**STRINGS, "minItems": 1}]}

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, str):
            try:
                words = shlex.split(value)
            # shlex's words begin with a capital letter: `No closing quotation`.
            except ValueError as error:
                raise ValueError(f"can't be split into words: {str(error).lower()}") from None
        elif isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            words = list(value)
        else:
            raise ValueError(
                "is not a program with arguments; quote arguments that are not strings"
            )
        if not words or not words[0]:
            raise ValueError("names no program")
        return cls(words)


class FolderName(str):
    __slots__ = ()
    ALLOWED = "an absolute path in the container"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^/"}

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or not value.startswith("/"):
            raise ValueError(f"{shown(value)} is not an absolute path")
        return cls(value)


class UserName(str):
    __slots__ = ()
    ALLOWED = "a user name or id of the image, optionally followed by :group"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["string", "integer"]}

    @classmethod
    def read(cls, value: object) -> Self:
        text = str(value) if type(value) is int and 0 <= value < 1 << 32 else value
        if not isinstance(text, str) or not _USER.fullmatch(text):
            raise ValueError(f"{shown(value)} is not a user")
        return cls(text)


class PythonVersion(str):
    """A version such as 3.12 or 3.12.4."""

    __slots__ = ()
    ALLOWED = "a version such as 3.12 or 3.12.4"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["string", "number"]}

    @classmethod
    def read(cls, value: object) -> Self:
        text = "3.10" if value == 3.1 else str(value)  # YAML reads 3.10 as the number 3.1
        if isinstance(value, bool) or not _PYTHON.fullmatch(text):
            raise ValueError(f"{shown(value)} is not a version of Python")
        return cls(text)


class SignalName(str):
    __slots__ = ()
    ALLOWED = "SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 or SIGKILL"
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or value not in _SIGNALS:
            raise ValueError(f"{shown(value)} is not a signal that can be sent{cls._full(value)}")
        return cls(value)

    @classmethod
    def _full(cls, value: object) -> str:
        return _full_signal(value)


_NEVER_SEEN = "SIGKILL is never seen by the process that it ends"


class CaughtSignalName(SignalName):
    """A signal that a process can catch."""

    __slots__ = ()
    ALLOWED = "SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1 or SIGUSR2"

    @classmethod
    def read(cls, value: object) -> Self:
        name = super().read(value)
        if name == "SIGKILL":
            raise ValueError(_NEVER_SEEN)
        return name

    @classmethod
    def _full(cls, value: object) -> str:
        written = super()._full(value)
        return f": {_NEVER_SEEN}" if "SIGKILL" in written else written


def _full_signal(value: object) -> str:
    """Return the name of a signal that was written as `TERM` or `15`."""
    name = f"SIG{value}".upper()
    if type(value) is int and value in set(Signals):
        name = Signals(value).name
    return f": write {name}" if name in _SIGNALS else ""


class SshChoice(str):
    __slots__ = ()
    ALLOWED = "auto, embedded, install, off"
    SCHEMA: ClassVar[dict[str, Any]] = {"enum": ["auto", "embedded", "install", "off", False]}

    @classmethod
    def read(cls, value: object) -> Self:
        choice = "off" if value is False else value  # YAML reads an unquoted off as false
        if not isinstance(choice, str) or choice not in _SSH_CHOICES:
            raise ValueError(f"{shown(value)} is not a way to serve SSH")
        return cls(choice)


# -- variables ------------------------------------------------------------------------------------


class Env(dict[str, str]):
    """Environment variables. The values may be secret: no message repeats one."""

    ALLOWED = "a mapping of names to strings or numbers, or a list of NAME=VALUE"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["number", "string"]}},
            STRINGS,
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, dict):
            return cls(_variable(name, content) for name, content in value.items())
        if isinstance(value, list | tuple):
            return cls(_of_list(value))
        how = ": begin each line with `- `" if isinstance(value, str) and "=" in value else ""
        raise ValueError(f"must be a mapping or a list{how}")

    def __repr__(self) -> str:
        return f"Env({sorted(self)})"


def _of_list(entries: list[object] | tuple[object, ...]) -> dict[str, str]:
    env: dict[str, str] = {}
    for number, entry in enumerate(entries):
        name, content = _assignment(entry, f"env[{number}]")
        if name in env:
            raise ConfigurationError(f"env[{number}]", f"gives {name[:60]} a second time")
        env[name] = content
    return env


def _assignment(entry: object, field: str) -> tuple[str, str]:
    if isinstance(entry, dict) and len(entry) == 1:
        name = next(iter(entry))
        raise ConfigurationError(
            field,
            f"is a mapping: write {shown(name)[1:-1]}=VALUE, or a mapping without `- `",
            Env.ALLOWED,
        )
    if not isinstance(entry, str):
        raise ConfigurationError(field, "is not a string", Env.ALLOWED)
    name, equals, content = entry.partition("=")
    if not equals:
        raise ConfigurationError(
            field,
            "has no value: set it here, or in the environment of `fairlead apply`",
            Env.ALLOWED,
        )
    if not _ENV_NAME.fullmatch(name):
        why = "does not begin with the name of a variable"
        raise ConfigurationError(field, why, Env.ALLOWED)
    return _variable(name, content)


def _variable(name: object, content: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
        why = f"{shown(name)} can't be a variable's name{_as_variable(name)}"
        raise ConfigurationError("env", why, Env.ALLOWED)
    if isinstance(content, bool):
        why = "is true or false in YAML; quote it to write a string"
        raise ConfigurationError(f"env.{name}", why, Env.ALLOWED)
    if content is None:
        why = 'has no value: write "" for an empty string'
        raise ConfigurationError(f"env.{name}", why, Env.ALLOWED)
    if not isinstance(content, str | int | float):
        raise ConfigurationError(f"env.{name}", "must be a string or a number", Env.ALLOWED)
    try:
        text = str(content)
    except ValueError:
        # CPython converts no integer of more than 4,300 digits (sys.set_int_max_str_digits).
        raise ConfigurationError(
            f"env.{name}", "is a number with too many digits; quote it"
        ) from None
    return name, text


def _as_variable(name: object) -> str:
    short = name.strip().removeprefix("export ").strip() if isinstance(name, str) else ""
    return f": write {short}=VALUE" if short != name and _ENV_NAME.fullmatch(short) else ""


class Secrets(dict[str, str]):
    """Secrets; only the names are shown."""

    ALLOWED = (
        "a mapping of names to strings, ${NAME} or ${{ secrets.NAME }}, or a list of names"
        " of variables of your environment"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "object", "additionalProperties": STRING}, STRINGS],
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise ValueError("must be a mapping, or a list of names of variables that are set")
        _check_secrets(value)
        return cls(value)

    def __repr__(self) -> str:
        return f"Secrets({sorted(self)})"


def _check_secrets(value: Mapping[str, object]) -> None:
    for name, content in value.items():
        if not _SECRET_NAME.fullmatch(name):
            why = f"{shown(name)} can't be a secret's name"
            raise ConfigurationError("secrets", why, Secrets.ALLOWED)
        if not isinstance(content, str):
            raise ConfigurationError(f"secrets.{name}", "is not a string", Secrets.ALLOWED)
