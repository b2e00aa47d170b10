"""The providers of the controller's file. Only the modules of those that it names are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from controller.clouds.base import Cloud
from controller.server_config import ProviderConfig


def make_clouds(providers: Mapping[str, ProviderConfig]) -> dict[str, Cloud]:
    """Return the providers by name."""
    return {name: _cloud(name, config) for name, config in providers.items()}


def _cloud(name: str, config: ProviderConfig) -> Cloud:
    from controller.clouds.base import Abilities
    from controller.clouds.exec import ExecCloud

    abilities = Abilities(idempotent=config.idempotent, visible_after=config.visible_after)
    return ExecCloud(name, config.command, abilities=abilities, timeout=config.timeout)
