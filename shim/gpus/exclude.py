"""GPUs that the node's operator keeps for other work: named by index, UUID or PCI address."""

from __future__ import annotations

import re

import msgspec

from shim.errors import StartError
from shim.schemas import GpuInfo

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.IGNORECASE)


class Exclusion(msgspec.Struct, frozen=True):
    """One `--exclude-gpu`. Leaving out a GPU leaves out its MIG instances."""

    text: str
    index: int | None = None
    uuid: str | None = None
    pci: str | None = None

    @classmethod
    def parse(cls, text: str) -> Exclusion:
        """Raises StartError: a GPU that was to be kept must not be offered for a typing error."""
        if text.isascii() and text.isdecimal():
            return cls(text, index=int(text))
        if _UUID.fullmatch(text):
            return cls(text, uuid=text.lower())
        if normal_pci(text) is not None:
            return cls(text, pci=normal_pci(text))
        raise StartError(
            f"--exclude-gpu {text!r}: expected an index (0), a UUID (GPU-…) or a PCI address "
            "(0000:17:00.0)"
        )

    def covers(self, gpu: GpuInfo) -> bool:
        if self.index is not None:
            return gpu.index == self.index
        if self.uuid is not None:
            return self.uuid in (gpu.uuid.lower(), (gpu.mig_parent or "").lower())
        return gpu.pci is not None and normal_pci(gpu.pci) == self.pci

    def covers_also_when_gone(self, gpu: GpuInfo) -> bool:
        """The index of a GPU that is gone is another one's now."""
        return self.index is None and self.covers(gpu)


def normal_pci(text: str) -> str | None:
    """Lower case with a domain of eight digits, as in `00000000:17:00.0`; None: no address."""
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function}".lower()
