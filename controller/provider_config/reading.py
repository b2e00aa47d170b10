"""Reads `providers.NAME` of the controller's file with the module of its type."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from controller.currencies import rates, take_money
from controller.provider_config.aws import AwsProvider, read_aws
from controller.provider_config.checks import NAME, NAMES
from controller.provider_config.gcp import GcpProvider, read_gcp
from controller.provider_config.hetzner import HetznerProvider, read_hetzner
from controller.provider_config.program import ExecProvider, read_exec
from controller.provider_config.qemu import QemuProvider, read_qemu
from fairlead.configuration.convert import ConfigurationError

ProviderConfig = ExecProvider | AwsProvider | GcpProvider | HetznerProvider | QemuProvider


def read_providers(
    written: Mapping[str, Mapping[str, Any]], currency: str | None = None
) -> dict[str, ProviderConfig]:
    """Return the providers of the controller's file; `currency`: of the installation. Raises
    ConfigurationError."""
    fields = {name: dict(data) for name, data in written.items()}
    money = {name: take_money(f"providers.{name}", data) for name, data in fields.items()}
    providers = {name: read_provider(name, data) for name, data in fields.items()}
    for name, rate in rates(money, currency).items():
        providers[name] = msgspec.structs.replace(providers[name], rate=rate)
    folders: dict[Path, str] = {}
    for name, one in providers.items():
        if not isinstance(one, QemuProvider):
            continue
        # Each takes what it did not finish itself for rubbish.
        if (other := folders.setdefault(Path(os.path.normpath(one.folder)), name)) != name:
            problem = f"is that of provider {other}"
            raise ConfigurationError(f"providers.{name}.folder", problem, "one folder for each")
    return providers


def read_provider(name: str, data: Mapping[str, Any]) -> ProviderConfig:
    """Return the provider that is written as `providers.NAME`. Raises ConfigurationError."""
    within = f"providers.{name}"
    if not NAME.fullmatch(name):
        raise ConfigurationError(within, "is not a provider's name", NAMES)
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        known = ", ".join(_READERS)
        problem = "is missing" if kind is None else f"{kind!r} is no type of providers"
        raise ConfigurationError(f"{within}.type", problem, known)
    return _READERS[kind](within, dict(data))


_READERS: Mapping[str, Callable[[str, dict[str, Any]], ProviderConfig]] = {
    "exec": read_exec,
    "aws": read_aws,
    "gcp": read_gcp,
    "hetzner": read_hetzner,
    "qemu": read_qemu,
}
