"""`type: exec`: a program of the operator makes the machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from controller.provider_config.checks import ACCOUNTS, Fields, Priced, account_of
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field
from fairlead.configuration.values.units import DURATION_ALLOWED, Duration

_SOME_TIME = f"{DURATION_ALLOWED}, more than 0"
_COMMAND = "a list: an absolute path of a program, and its arguments"


class _ExecFields(Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["exec"], Field("exec: a program of yours makes the machines")]
    command: Annotated[tuple[str, ...], Field(_COMMAND)]
    timeout: Annotated[Duration | None, Field(_SOME_TIME)] = None
    idempotent: Annotated[
        bool, Field("true: the program makes one machine for one token, however often it is asked")
    ] = False
    visible_after: Annotated[
        Duration | None,
        Field(f"{DURATION_ALLOWED}: how long a new machine may be missing from its list"),
    ] = None
    account: Annotated[str | None, Field(ACCOUNTS)] = None


class ExecProvider(Priced, frozen=True, kw_only=True):
    """A provider that is a program. Times in seconds. `account`: a name for the account that the
    program uses."""

    command: tuple[str, ...]
    timeout: float = 300.0
    idempotent: bool = False
    visible_after: float = 60.0
    account: str | None = None
    regions: None = None
    """A program's offers name its regions."""


def read_exec(within: str, data: dict[str, Any]) -> ExecProvider:
    written = convert(data, _ExecFields, within=within)
    field = f"{within}.command"
    if not written.command:
        raise ConfigurationError(field, "is empty", _COMMAND)
    program = Path(written.command[0])
    if not program.is_absolute():
        raise ConfigurationError(field, f"{program} is not an absolute path", _COMMAND)
    if "\0" in "".join(written.command):
        raise ConfigurationError(field, "has a zero byte", _COMMAND)
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise ConfigurationError(field, f"{program} is no program that can be run", _COMMAND)
    plain = ExecProvider(command=written.command)
    timeout, visible_after = written.timeout, written.visible_after
    if timeout is not None and float(timeout) <= 0:
        raise ConfigurationError(f"{within}.timeout", "leaves no time for a call", _SOME_TIME)
    return ExecProvider(
        command=written.command,
        timeout=plain.timeout if timeout is None else float(timeout),
        idempotent=written.idempotent,
        visible_after=plain.visible_after if visible_after is None else float(visible_after),
        account=account_of(f"{within}.account", written.account),
    )
