#!/usr/bin/env python3
"""A provider of machines for `type: exec` whose machines are shims on this machine.

It shows the calls, and lets you try fleets that rent machines without an account anywhere: a
"machine" runs jobs as plain processes, without isolation. Real programs make and end machines of a
cloud in the same six functions. It needs only Python.

    processes.py --folder FOLDER --shim PATH_OF_fairlead-shim
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Wish = dict[str, Any]
OFFERS = {"small": {"cpu": 1, "price": 0.1}, "large": {"cpu": 4, "price": 0.5}}


class Refusal(Exception):
    """`kind`: no_capacity, quota, refused, throttled or unauthorized."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Machines:
    def __init__(self, folder: str, shim: str) -> None:
        self.folder = Path(folder)
        self.shim = shim
        self.folder.mkdir(parents=True, exist_ok=True)

    def offers(self, wish: Wish) -> Wish:
        offers = [
            {"instance_type": name, "region": "here", "memory_gib": 1, "disk_gib": 1, **more}
            for name, more in OFFERS.items()
        ]
        return {"offers": offers}

    def create(self, wish: Wish) -> Wish:
        # The same token again is the same machine: `idempotent: true` in the controller's file.
        folder = self.folder / wish["token"][:12]
        if not (folder / "machine.json").exists():
            if len(list(self.folder.glob("*/machine.json"))) >= 8:
                raise Refusal("no_capacity", "eight machines are as many as this one holds")
            folder.mkdir(exist_ok=True)
            kept = ("machine", "fleet", "installation", "name", "instance_type", "region")
            about = {key: wish[key] for key in kept}
            self._start(folder, {**about, "created_at": time.time()})
        return self._shown(folder)

    def _start(self, folder: Path, about: Wish) -> None:
        argv = [self.shim, "--data", str(folder / "data"), "--socket", str(folder / "shim.sock")]
        argv += ["--engine", "process"]
        with (folder / "shim.log").open("wb") as log:
            subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        # Last, and at once: what has no machine.json was cut off, and is made again.
        (folder / "new.json").write_text(json.dumps(about))
        (folder / "new.json").rename(folder / "machine.json")

    def describe(self, wish: Wish) -> Wish:
        folders = [self.folder / name for name in wish["ids"]]
        return {"machines": [self._shown(one) for one in folders if one.exists()]}

    def list(self, wish: Wish) -> Wish:
        every = [self._shown(file.parent) for file in self.folder.glob("*/machine.json")]
        mine = [one for one in every if one["installation"] == wish["installation"]]
        return {"machines": mine}

    def terminate(self, wish: Wish) -> Wish:
        folder = self.folder / wish["id"]
        if (folder / "machine.json").exists():
            # A shim that ends leaves its jobs running, and a machine that ends does not.
            if left := processes_with(f"{folder}/data"):
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                return {"gone": False}
            shutil.rmtree(folder)
        return {"gone": True}

    def console(self, wish: Wish) -> Wish:
        log = self.folder / wish["id"] / "shim.log"
        return {"text": log.read_text()[-4096:] if log.exists() else None}

    def _shown(self, folder: Path) -> Wish:
        about = json.loads((folder / "machine.json").read_text())
        return {
            "id": folder.name,
            "machine": about["machine"],
            "fleet": about.get("fleet"),
            "installation": about["installation"],
            "created_at": about["created_at"],
            "instance_type": about.get("instance_type"),
            "region": about.get("region"),
            "socket": str(folder / "shim.sock"),
        }


def processes_with(path: str) -> list[int]:
    """Return the processes whose arguments name this path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            if path.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--shim", required=True)
    options = parser.parse_args()
    machines = Machines(options.folder, options.shim)
    wish = json.load(sys.stdin)
    with (machines.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            answer = getattr(machines, wish["call"])(wish)
        except Refusal as refusal:
            answer = {"error": refusal.kind, "message": str(refusal)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
