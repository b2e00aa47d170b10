"""Sends what a run needs from this machine, before the run itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller.cli import output
from controller.cli.client import ControllerClient
from controller.cli.packing import pack
from controller.configuration.parse import parse

_WORTH_TELLING = 4 << 20


def send_code(
    client: ControllerClient, configuration: object, base: Path, environ: Mapping[str, str]
) -> object:
    """The configuration to submit: complete without this machine. Paths in it are relative to
    `base`. Raises ConfigurationError, CliError."""
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    with tempfile.TemporaryDirectory(prefix="fairlead-upload-") as scratch:
        packed = pack(configuration, parsed, base, environ, Path(scratch))
        for digest, file in packed.uploads.items():
            if not client.has_upload(digest):
                _tell(file)
                client.upload(digest, file)
    sent: dict[str, Any] = packed.configuration
    return sent


def _tell(file: Path) -> None:
    size = file.stat().st_size
    if size >= _WORTH_TELLING:
        output.note(f"sending {size / (1 << 20):.0f} MiB of code")
