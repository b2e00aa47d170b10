"""Examines a node's NVIDIA GPUs: cards, driver, and the toolkit that gives them to containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shim.examination import Asked, NodeSetup, bad, ok, warn
from shim.schemas import Finding

_CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    cards = _cards(node.root)
    if not cards:
        yield ok("there is no NVIDIA GPU")
        return
    if not (node.root / "proc/driver/nvidia/version").exists():
        fix = "install NVIDIA's driver for this kernel, and reboot"
        yield bad(f"{cards} NVIDIA GPUs, but no driver is loaded", fix)
        return
    answer = asked(("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"))
    seen = len(answer.output.split()) if answer.status == 0 else 0
    if answer.status:
        yield bad(f"the driver does not answer: {answer.output.strip()[:200]}", "reboot the node")
    elif seen < cards:
        yield bad(f"the driver shows {seen} of {cards} GPUs", "see `dmesg | grep -i xid`")
    else:
        yield ok(f"the driver shows {seen} GPUs")
    yield _toolkit(node.root, asked)


def _cards(root: Path) -> int:
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        found += vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS)
    return found


def _toolkit(root: Path, asked: Asked) -> Finding:
    specs = [path for folder in _CDI_FOLDERS for path in (root / folder).glob("*")]
    if any("nvidia.com/gpu" in path.read_text() for path in specs):
        return ok("a CDI specification names the GPUs")
    if asked(("nvidia-container-runtime-hook", "--version")).status != 127:
        return warn(
            "GPUs are given by the toolkit's hook: `systemctl daemon-reload` may take them away",
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    return bad(
        "containers get GPUs without their driver: there is no NVIDIA container toolkit",
        "install nvidia-container-toolkit, then nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml",
    )
