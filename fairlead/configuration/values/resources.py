"""What a job asks of its node: CPU, memory, disk, GPUs.

Of a range a job takes the lower end. A resource begins with its field in `ResourcesFields`. What
is counted has its counterpart in `fairlead.model.needs.Resources`. A device of the node, which the
engine gives or does not, has it in the shim's `ContainerOptions`, and names the ability it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, mapping_of, own_fields
from fairlead.configuration.values.units import (
    SIZE_ALLOWED,
    Cpu,
    Size,
    parse_count,
    parse_size,
    shown,
    without_upper_end,
)
from fairlead.model.needs import GpuNeed
from fairlead.wire.gpu_names import GpuVendor, vendor_of
from fairlead.wire.sizes import size_of

_TIMES = re.compile(
    r"(?P<name>[A-Za-z][\w ]*?\d) *[x*] *(?P<count>\d+)"
    r"|(?P<first>\d+) *[x*]? *(?P<last>[A-Za-z]\w*)",
    re.ASCII | re.IGNORECASE,
)
"""`H100 x 8` and `8xH100`, as people write a number of GPUs."""
_SHORT_UNIT = re.compile(r"[kmgtp]i?b?", re.ASCII | re.IGNORECASE)
_NO_GPU_NAMES = frozenset({"all", "any", "auto", "none"})
_GPU_NAME = re.compile(r"[A-Za-z][A-Za-z0-9 _-]{0,63}", re.ASCII)
_OTHER_VENDORS = frozenset({"google", "tpu", "intel", "tenstorrent", "tt"})
_OF_OTHER_VENDORS = {
    "Google": re.compile(r"(?:tpu-?)?v\d[a-z]*-\d+|tpu", re.ASCII),
    "Intel": re.compile(r"gaudi ?\d?", re.ASCII),
    "Tenstorrent": re.compile(r"tt-[a-z0-9-]+|[np]150[a-z]?|[np]300[a-z]?|wormhole", re.ASCII),
}
"""Names of accelerators that no node has. A vendor that nodes can have leaves this table."""
_VENDORS = {vendor.value: vendor for vendor in GpuVendor}
_ONLY = "nodes have GPUs of NVIDIA or AMD"
_CAPABILITY = re.compile(r"(\d{1,2}\.\d{1,2})(?:\.\.)?", re.ASCII)
_NO_GPU = (
    "asks for no GPU and says what kind it is: write at least 1, or leave out gpu for a job without"
)
"""Such a job would run without a GPU, although its user named one."""


class GpuFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of `resources.gpu`."""

    vendor: Annotated[str | None, Field(f"{' or '.join(GpuVendor)}")] = None
    name: Annotated[
        str | tuple[str, ...],
        Field(
            "a GPU name such as A100, or a list of them",
            called=("resources.gpu.type", "resources.gpu.model"),
        ),
    ] = ()
    count: Annotated[
        int | str,
        Field("a whole number, or a range such as 2..", called=("resources.gpu_count",)),
    ] = 1
    memory: Annotated[
        str | None,
        Field(f"the least memory of each GPU: {SIZE_ALLOWED}", called=("resources.vram",)),
    ] = None
    compute_capability: Annotated[
        str | float | None, Field("the least compute capability, such as 8.0")
    ] = None


class Gpu:
    __slots__ = ("need",)
    FIELDS = GpuFields
    ALLOWED = (
        "a count, NAME, NAME:COUNT, NAME:MEMORY:COUNT, VENDOR:NAME:COUNT, or a mapping with"
        " vendor, name, count, memory, compute_capability"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": ["integer", "string"]}, mapping_of(GpuFields)]
    }

    def __init__(self, need: GpuNeed) -> None:
        self.need = need

    @property
    def plain(self) -> GpuNeed:
        return self.need

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, dict):
            return cls(_gpu_of_mapping(value))
        if isinstance(value, str) and not value.strip().replace(".", "").isdigit():
            return cls(_gpu_of_text(value))
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            raise ValueError(f"is a list: write {','.join(value)[:60]} for any of them")
        if isinstance(value, bool | list | tuple):
            raise ValueError(f"{shown(value)} is not a GPU request")
        return cls(GpuNeed(count=parse_count(value)))


class ResourcesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: Annotated[Cpu | None, Field(called=("cpu", "cpus", "resources.cpus"))] = None
    memory: Annotated[
        Size | None,
        Field(
            f"{SIZE_ALLOWED}, at least 48MiB",
            called=("memory", "resources.ram", "resources.mem"),
        ),
    ] = None
    gpu: Annotated[
        Gpu | None,
        Field(called=("gpu", "gpus", "resources.gpus", "resources.accelerators")),
    ] = None
    disk: Annotated[Size | None, Field(called=("disk", "resources.disk_size"))] = None
    shm_size: Annotated[
        Size | None,
        Field(f"{SIZE_ALLOWED}, at most the job's memory", called=("shm_size", "resources.shm")),
    ] = None
    infiniband: bool | None = None


def _gpu_of_text(text: str) -> GpuNeed:
    """Return the need of `[VENDOR:]NAME[,NAME…][:MEMORY][:COUNT]`, each part optional, as in
    dstack; of a range of memory or counts a job takes the lower end."""
    _check_gpu_words(text)
    whole = text
    count, memory, names = 1, 0, tuple[str, ...]()
    first, colon, rest = text.partition(":")
    vendor = _vendor(first) if colon or first.strip().lower() in _VENDORS else None
    if vendor is not None:
        text = rest if colon else str(count)
    for number, part in enumerate(text.split(":")):
        word = part.strip()
        if word.replace(".", "").isdigit():
            count = parse_count(word)
        elif word[:1].isdigit():
            memory = _min_size(word)
        elif number == 0:
            names = _gpu_names(word.split(","))
        else:
            raise ValueError(f"{shown(text)} is not a GPU request")
    if not count and (vendor or names or memory):
        raise ValueError(f"{shown(whole)} {_NO_GPU}")
    vendor = _agreed_vendor(vendor, names)
    return GpuNeed(count=count, vendor=vendor, names=names, min_memory=memory)


def _vendor(word: str) -> GpuVendor | None:
    """Return the vendor of this name; None: it is no vendor's name. Raises ValueError for one whose
    accelerators no node has."""
    name = word.strip().lower()
    if name in _OTHER_VENDORS:
        raise ValueError(f"{shown(word)}: GPUs of {word.strip()} are not supported; {_ONLY}")
    return _VENDORS.get(name)


def _agreed_vendor(written: GpuVendor | None, names: Iterable[str]) -> GpuVendor:
    """Return whose GPUs the job gets: `written`, or the one that the names tell (docs/rules.md
    6.2)."""
    vendors = {vendor_of(name): name for name in names}
    if written is None and len(vendors) > 1:
        amd = vendors.pop(GpuVendor.AMD)
        other = next(iter(vendors.values()))
        raise ValueError(
            f"{amd} is a GPU of AMD and {other} is not: a job gets GPUs of one vendor, so leave"
            " out one of them"
        )
    if written is GpuVendor.NVIDIA and GpuVendor.AMD in vendors:
        raise ValueError(f"{vendors[GpuVendor.AMD]} is a GPU of AMD, not of NVIDIA")
    return written or next(iter(vendors), GpuVendor.NVIDIA)


def _check_gpu_words(text: str) -> None:
    """Refuse what reads like a request and is none of our form."""
    match = None if size_of(text) is not None else _TIMES.fullmatch(text.strip())
    if match is not None and not _SHORT_UNIT.fullmatch(match["last"] or ""):
        name, count = (match["name"] or match["last"]).strip(), match["count"] or match["first"]
        raise ValueError(f"{shown(text)} is not a GPU request: write {name}:{count}")
    if text.strip().lower() in _NO_GPU_NAMES:
        raise ValueError(f"{shown(text)} is not a GPU's name: write how many, such as 1")
    parts = [part.strip() for part in text.split(":")]
    if sum(part.isdigit() for part in parts) > 1:
        raise ValueError(f"{shown(text)} has two counts; memory has a unit, such as 80GB")


def _gpu_names(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    stripped = tuple(name.strip() for name in names)
    for name in stripped:
        if not _GPU_NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is not a GPU's name")
        for vendor, pattern in _OF_OTHER_VENDORS.items():
            if pattern.fullmatch(name.lower()):
                raise ValueError(
                    f"{name} is an accelerator of {vendor}, which is not supported; {_ONLY}"
                )
    return stripped


def _gpu_of_mapping(value: dict[object, object]) -> GpuNeed:
    fields = convert(value, GpuFields, within="resources.gpu")
    names = (fields.name,) if isinstance(fields.name, str) else fields.name
    memory = fields.memory
    written = None if fields.vendor is None else _named("vendor", _known_vendor, fields.vendor)
    names = _named("name", _gpu_names, names)
    vendor = _named("name", lambda names: _agreed_vendor(written, names), names)
    if vendor is not GpuVendor.NVIDIA and fields.compute_capability is not None:
        raise ConfigurationError(
            "resources.gpu.compute_capability",
            f"is a measure of NVIDIA, and the job asks for GPUs of {vendor}: name the GPUs instead",
        )
    count = _named("count", parse_count, fields.count)
    if not count and value.keys() - {"count"}:
        raise ConfigurationError("resources.gpu.count", f"{shown(str(fields.count))} {_NO_GPU}")
    return GpuNeed(
        count=count,
        vendor=vendor,
        names=names,
        min_memory=0 if memory is None else _named("memory", _min_size, memory),
        min_compute_capability=_named("compute_capability", _capability, fields.compute_capability),
    )


def _known_vendor(word: str) -> GpuVendor:
    vendor = _vendor(word)
    if vendor is None:
        raise ValueError(f"{shown(word)} is not a vendor of GPUs")
    return vendor


def _named(name: str, make_value: Callable[[Any], Any], value: object) -> Any:
    try:
        return make_value(value)
    except ValueError as error:
        allowed = own_fields(GpuFields)[name].allowed
        raise ConfigurationError(f"resources.gpu.{name}", str(error), allowed) from None


def _min_size(value: str) -> int:
    return parse_size(without_upper_end(value))


def _capability(value: object) -> str | None:
    if value is None:
        return None
    match = _CAPABILITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{shown(value)} is not a compute capability")
    return match[1]
