"""The providers of machines that the operator named."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import assert_never

import asyncssh
import msgspec

from controller import identity
from controller.clouds.base import Cloud
from controller.clouds.catalog import CannotKeep, Catalog
from controller.daemon.options import CannotStart, Options
from controller.lifecycle.inventory import unknown_users
from controller.lifecycle.machines.homes import homeless, homeless_orphan
from controller.lifecycle.machines.model import Machine
from controller.machines.manager import MachineSettings
from controller.pipelines.performers.cluster import secret_of
from controller.provider_config.aws import AwsProvider
from controller.provider_config.gcp import GcpProvider
from controller.provider_config.hetzner import HetznerProvider
from controller.provider_config.program import ExecProvider
from controller.provider_config.qemu import QemuProvider
from controller.provider_config.reading import ProviderConfig
from controller.service.machines.user_data import JoinPoint, UserData, render
from controller.store.base import Changes, Snapshot, Store, StoredCatalog
from controller.store.errors import StoreError

log = logging.getLogger(__name__)
_DIGEST_LENGTH = 16


def require_providers(options: Options, snapshot: Snapshot) -> None:
    """Raise CannotStart when machines of a provider, or of one of its regions, live that the file
    does not name: nothing could end them."""
    if (missing := homeless(_regions(options), snapshot.machines)) is not None:
        raise CannotStart(missing)


def _regions(options: Options) -> dict[str, Collection[str] | None]:
    return {name: one.regions for name, one in options.providers.items()}


def _listed_regions(options: Options) -> dict[str, Collection[str] | None]:
    """Return those that the lists of each provider are of; None: all."""
    # Hetzner lists a project's machines wherever they are, so one that is not listed is gone.
    return {
        name: None if isinstance(one, HetznerProvider) else one.regions
        for name, one in options.providers.items()
    }


def warn_of_homeless_orphans(options: Options, snapshot: Snapshot) -> None:
    """Tell of machines without a record that nothing ends: nobody else would miss them."""
    regions = _listed_regions(options)
    for one in snapshot.orphans:
        if one.gone_at is None and (why := homeless_orphan(regions, one)) is not None:
            log.warning("machine %s has no record: %s", one.name, why)


def warn_of_unknown_users(options: Options, snapshot: Snapshot) -> None:
    """Tell of budgets of users that there are not: a misspelt one limits nobody."""
    # No refusal: a user may be added later, or was removed.
    users = {user.name for user in snapshot.users}
    if unknown := unknown_users(options.spending.users, users):
        log.warning("%s", unknown)


class Catalogs:
    """The catalogs that were read, in the database: each controller that leads has the same."""

    def __init__(self, store: Store, stored: Iterable[StoredCatalog]) -> None:
        self._store = store
        self._stored = {one.name: one.content for one in stored}

    def of(self, cloud: str, provider: str) -> Catalog:
        # By the cloud too: a provider of another one may get the name.
        name = f"{provider}.{cloud}"

        async def keep(content: str) -> None:
            changes = Changes(catalogs=(StoredCatalog(name=name, content=content),))
            try:
                await self._store.commit(changes)
            except StoreError as error:
                raise CannotKeep(str(error)) from error

        return Catalog(cloud, self._stored.get(name), keep)


def make_cloud(name: str, config: ProviderConfig, catalogs: Catalogs) -> Cloud:
    """Return a provider. Only the modules of those that the controller's file names are loaded.

    Raises CannotStart.
    """
    if isinstance(config, AwsProvider):
        with _library_of(name, "aws"):
            from controller.clouds.aws.cloud import AwsCloud
        return AwsCloud(name, config, catalog=catalogs.of("aws", name))
    if isinstance(config, GcpProvider):
        with _library_of(name, "gcp"):
            from controller.clouds.gcp.cloud import GcpCloud
        return GcpCloud(name, config, catalog=catalogs.of("gcp", name))
    if isinstance(config, HetznerProvider):
        from controller.clouds.hetzner import HetznerCloud

        return HetznerCloud(name, config)
    if isinstance(config, QemuProvider):
        from controller.clouds.qemu import QemuCloud

        return QemuCloud(name, config)
    if isinstance(config, ExecProvider):
        from controller.clouds.base import Abilities
        from controller.clouds.exec import ExecCloud

        abilities = Abilities(idempotent=config.idempotent, visible_after=config.visible_after)
        return ExecCloud(
            name,
            config.command,
            abilities=abilities,
            timeout=config.timeout,
            account=config.account,
            rate=config.rate,
        )
    assert_never(config)


def require_library(name: str, config: ProviderConfig) -> None:
    """Raise CannotStart when the library of the provider's type is not there."""
    if isinstance(config, AwsProvider):
        with _library_of(name, "aws"):
            importlib.import_module("controller.clouds.aws.cloud")
    elif isinstance(config, GcpProvider):
        with _library_of(name, "gcp"):
            importlib.import_module("controller.clouds.gcp.cloud")


@contextlib.contextmanager
def _library_of(provider: str, extra: str) -> Iterator[None]:
    """Raises CannotStart when an import lacks a package of this extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"providers.{provider}: machines of type {extra} need the package {error.name}: "
            f"install 'fairlead-daemons[{extra}]' with the controller"
        ) from error


def machine_settings(
    options: Options, key: asyncssh.SSHKey, join: JoinPoint | None, catalogs: Catalogs
) -> MachineSettings | None:
    """None: the file names no provider, and nothing of machines is loaded or runs."""
    if not options.providers:
        return None
    from controller.machines import boot_data

    secret = secret_of(key)

    def user_data(machine: Machine) -> str:
        private, public = boot_data.host_key(secret, machine.id)
        return render(
            UserData(
                name=machine.name,
                fleet=machine.fleet,
                expires_at=None,
                leash=machine.leash,
                fresh_host_key=True,
                host_private_key=private,
                host_public_key=public,
                tunnel_key=identity.public_line(key),
                join=join,
                token=None if join is None else boot_data.join_token(secret, machine.id),
            )
        )

    return MachineSettings(
        clouds={
            name: make_cloud(name, config, catalogs) for name, config in options.providers.items()
        },
        boot_data=user_data,
        pin=lambda machine_id: boot_data.pin(secret, machine_id),
        spending=options.spending,
        regions=_listed_regions(options),
        setups={name: _digest(secret, config) for name, config in options.providers.items()},
    )


def _digest(secret: bytes, config: ProviderConfig) -> str:
    """Return what tells whether two controllers' files say the same of a provider. It is stored
    with each machine, and an argument of a program may be a secret: so it is keyed."""
    content = msgspec.json.encode(config, enc_hook=str, order="deterministic")
    return hmac.new(secret, content, hashlib.sha256).hexdigest()[:_DIGEST_LENGTH]
