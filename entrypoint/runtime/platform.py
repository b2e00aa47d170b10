"""The names that differ between processor architectures. Only x86-64 has been tested."""

from __future__ import annotations

import os
from dataclasses import dataclass

from entrypoint.runtime.errors import BuildError


@dataclass(frozen=True)
class Platform:
    machine: str
    triplet: str
    loader: str
    library_folder: str
    """The psABI's folder of the loader: /lib64 on x86-64, /lib on arm64."""


_PLATFORMS = {
    "x86_64": Platform("x86_64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2", "lib64"),
    "aarch64": Platform("aarch64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1", "lib"),
}


def current() -> Platform:
    machine = os.uname().machine
    if machine not in _PLATFORMS:
        raise BuildError(f"no runtime for {machine}: only {', '.join(_PLATFORMS)}")
    return _PLATFORMS[machine]
