"""`completion`: how a shell completes the command."""

from __future__ import annotations

from typing import Literal

from controller.cli import output


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Write the script by which a shell completes this command, such as `fairlead completion bash >
    ~/.local/share/bash-completion/completions/fairlead`.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from controller.cli.main import make_app

    output.emit(make_app().generate_completion(shell=shell).rstrip())
    return 0
