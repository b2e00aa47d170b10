"""A machine with NVIDIA GPUs, as far as their driver's library can tell.

The library is built from `standin.c` and loaded in place of the driver's; what it says is what a
test last wrote. Processes load it through `LD_LIBRARY_PATH`, the test's own through `load`.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
STATE = "FAIRLEAD_NVML_STATE"
_SOURCE = Path(__file__).with_name("standin.c")


def build(folder: Path) -> Path:
    """The library, made in `folder`."""
    library = folder / SONAME
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(
        ["gcc", *flags, f"-Wl,-soname,{SONAME}", "-o", library, _SOURCE, "-lpthread"], check=True
    )
    return library


def load(library: Path) -> None:
    """From now on, this process gets this one for the driver's library."""
    # dlopen of a soname gives what is loaded under it already.
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def mig_uuid(index: int, instance: int) -> str:
    return f"MIG-00000000-0000-4000-8000-{index:04d}{instance:08d}"


class StandIn:
    """The library's answers: `gpus` by index, each a dictionary of standin.c's keys; `lines` as
    they are. `tell` makes it true, at once and as a whole."""

    def __init__(self, state: Path, count: int = 2) -> None:
        self.state = state
        self.lines: list[str] = []
        self.gpus: dict[int, dict[str, object]] = {
            index: {
                "uuid": uuid(index),
                "name": "NVIDIA_H100_80GB_HBM3",
                "memory": 81559,
                "cc": "9.0",
                "pci": f"00000000:{0x17 + index:02X}:00.0",
                "numa": index * 2 // max(count, 1),
                "recovery": 0,
            }
            for index in range(count)
        }
        self._events.touch()
        self.tell()

    @property
    def _events(self) -> Path:
        return self.state.with_name(f"{self.state.name}.events")

    def tell(self, *lines: str) -> None:
        """Say also `lines`, until the next `tell`."""
        text = ["driver 550.54.15"]
        for index, gpu in self.gpus.items():
            text.append(f"gpu {index} " + " ".join(f"{k}={v}" for k, v in gpu.items()))
        new = self.state.with_name(f"{self.state.name}.new")
        new.write_text("\n".join([*text, *self.lines, *lines]) + "\n")
        new.rename(self.state)

    def change(self, index: int, **values: object) -> None:
        self.gpus[index].update(values)
        self.tell()

    def split(self, index: int, instances: int) -> None:
        """Put a GPU in MIG mode, with that many instances."""
        self.gpus[index]["mig"] = 1
        self.lines += [
            f"mig {index} {i} uuid={mig_uuid(index, i)} name=NVIDIA_H100_MIG_1g.10gb memory=9984 "
            f"cc=9.0 gi={i + 7} ci=0"
            for i in range(instances)
        ]
        self.tell()

    def merge(self, index: int) -> None:
        """Take all instances of a GPU away, and with them its handles."""
        self.lines = [line for line in self.lines if not line.startswith(f"mig {index} ")]
        self.gpus[index] |= {"mig": 0, "anew": 1}
        self.tell()

    def link(self, pairs: Iterable[tuple[int, int]]) -> None:
        self.lines += [f"nvlink {one} {other}" for one, other in pairs]
        self.tell()

    def raise_xid(self, index: int, number: int) -> None:
        with self._events.open("a") as events:
            events.write(f"{index} {number}\n")
