"""Examines a node's NVIDIA GPUs: cards, driver, and the toolkit that gives them to containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairlead.wire.node import Finding
from shim.examination import Asked, NodeSetup, bad, ok, warn

_CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")
_SWITCH = "0x0680"
"""The PCI class of an NVSwitch, a bridge of another kind."""
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    cards = _devices(node.root, _DISPLAYS)
    if not cards:
        yield ok("there is no NVIDIA GPU")
        return
    if not (node.root / "proc/driver/nvidia/version").exists():
        yield bad(f"{cards} NVIDIA GPUs, but no driver is loaded", _driver_fix(node.root))
        return
    answer = asked(("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"))
    seen = len(answer.output.split()) if answer.status == 0 else 0
    if answer.status:
        yield bad(f"the driver does not answer: {answer.output.strip()[:200]}", "reboot the node")
    elif seen < cards:
        yield bad(f"the driver shows {seen} of {cards} GPUs", "see `dmesg | grep -i xid`")
    else:
        yield ok(f"the driver shows {seen} GPUs")
    yield from _switches(node.root, asked)
    yield _toolkit(node.root, asked)


def _driver_fix(root: Path) -> str:
    variable = root / _SECURE_BOOT
    if variable.exists() and variable.read_bytes()[4:5] == b"\1":
        return (
            "Secure Boot is on, and loads no module whose key it does not know: turn it off, or "
            "enroll the key with which the driver was signed (mokutil --import)"
        )
    return "install NVIDIA's driver for this kernel, and reboot"


def _switches(root: Path, asked: Asked) -> Iterator[Finding]:
    """CUDA starts on a board with NVSwitch only once the Fabric Manager has set it up."""
    switches = _devices(root, (_SWITCH,))
    if not switches:
        return
    if asked(("systemctl", "is-active", "nvidia-fabricmanager.service")).status == 0:
        yield ok(f"the Fabric Manager runs for {switches} NVSwitches")
        return
    yield bad(
        f"{switches} NVSwitches, but nvidia-fabricmanager does not run: CUDA does not start here "
        "(error 802)",
        "install nvidia-fabricmanager of the driver's very version, then systemctl enable --now "
        "nvidia-fabricmanager",
    )


def _devices(root: Path, classes: tuple[str, ...]) -> int:
    """Return how many PCI devices of NVIDIA are of these classes."""
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        found += vendor.strip() == _NVIDIA and kind.startswith(classes)
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
