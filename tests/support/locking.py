"""Renews the two lists of pinned packages: ours, and that of the hermetic runtime.

The runtime's list is resolved for one platform and without markers, since it is installed by a
Python of another version than the one it is for; it follows the versions of our own list.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
_UV = "uv>=0.5"
_OPTIONS = [
    "--upgrade",
    "--quiet",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--python-version=3.11",
]


def main() -> None:
    runtime = "entrypoint/runtime/wheels"
    with tempfile.TemporaryDirectory() as tools:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, _UV]
        subprocess.run(pip, check=True)
        uv = Path(tools) / "bin" / "uv"
        ours = ["pyproject.toml", "--all-extras", "--universal", "-o", "requirements.lock"]
        wheels = [f"{runtime}.in", "-c", "requirements.lock", "-o", f"{runtime}.lock"]
        for arguments in (ours, [*wheels, "--python-platform=x86_64-manylinux_2_28"]):
            _compile(uv, arguments)


def _compile(uv: Path, arguments: list[str]) -> None:
    certificates = {"UV_SYSTEM_CERTS": "true"}
    subprocess.run(
        [uv, "pip", "compile", *arguments, *_OPTIONS],
        cwd=_CHECKOUT,
        env={**os.environ, **certificates},
        check=True,
    )


if __name__ == "__main__":
    main()
