"""A stand-in for NVIDIA's runtime hook: an OCI prestart hook, called by runc.

It makes a device file for each GPU that NVIDIA_VISIBLE_DEVICES names, as the real one does, and
refuses a UUID that it does not know. Before it runs, the container's own /dev is there.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

MAJOR = 195
_NUMBERS = {"GPU": slice(None), "MIG": slice(0, 4)}
_MIDDLE = "-00000000-0000-4000-8000-"
"""An instance comes with its card's file; the first digits of its number are the card's."""


def main() -> None:
    state = json.load(sys.stdin)
    bundle = Path(state.get("bundle") or os.getcwd())
    config = json.loads((bundle / "config.json").read_text())
    names = [line.removeprefix("NVIDIA_VISIBLE_DEVICES=") for line in config["process"]["env"]
             if line.startswith("NVIDIA_VISIBLE_DEVICES=")]  # fmt: skip
    if sys.argv[-1] != "prestart" or not names or names[-1] in ("", "void"):
        return
    root = bundle / config["root"]["path"]
    made: set[int] = set()
    for uuid in names[-1].split(","):
        kind, _, number = uuid.partition(_MIDDLE)
        if kind not in _NUMBERS or not number:
            sys.exit(f"nvidia-container-cli: device error: {uuid}: unknown device")
        made.add(int(number[_NUMBERS[kind]]))
    for minor in made:
        inside = ["nsenter", f"--mount=/proc/{state['pid']}/ns/mnt", "mknod", "-m", "666"]
        device = f"{root}/dev/nvidia{minor}"
        subprocess.run([*inside, device, "c", str(MAJOR), str(minor)], check=True)


def install(folder: Path) -> Path:
    """The folder to have on dockerd's PATH."""
    folder.mkdir(parents=True)
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).resolve()} "$@"\n')
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    return folder


if __name__ == "__main__":
    main()
