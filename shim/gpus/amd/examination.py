"""Examines a node's AMD GPUs: cards, driver, and the library that tells about them."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.wire.node import Finding
from shim.examination import Asked, NodeSetup, bad, ok

_AMD = "0x1002"
_KINDS = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of displays, and of accelerators such as the MI300X."""


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    cards = 0
    for device in (node.root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        cards += vendor.strip() == _AMD and kind.startswith(_KINDS)
    renders = len(list((node.root / "dev/dri").glob("renderD*")))
    if renders < cards:
        fix = "see `dmesg | grep -i amdgpu`"
        yield bad(f"the driver shows {renders} of {cards} GPUs", fix)
    else:
        yield ok(f"the driver shows {renders} GPUs")
    if not (node.root / "opt/rocm/share/amd_smi/amdsmi").is_dir():
        fix = "install ROCm's package amd-smi-lib on the node"
        yield bad("AMD's amdsmi is missing, so no GPU is offered", fix)
    else:
        yield ok("AMD's amdsmi is here")
