"""Completion: a shell completes the commands (`completion`), an editor the YAML (`schema`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.cli import output
from fairlead.configuration.json_schema import document


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Write the script by which a shell completes this command, such as `fairlead completion bash >
    ~/.local/share/bash-completion/completions/fairlead`.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from fairlead.cli.main import make_app

    output.emit(make_app().generate_completion(shell=shell).rstrip())
    return 0


def schema() -> int:
    """Write the JSON Schema of a task's YAML, by which editors complete and check it."""
    output.emit_json(msgspec.json.format(msgspec.json.encode(document()), indent=2))
    return 0
