"""Takes the lease, and learns what the database and the data folder know."""

from __future__ import annotations

import asyncio
import logging

import asyncssh
import msgspec

from controller import identity
from controller.clock import SystemClock
from controller.daemon.lease import Leading, lease_kept
from controller.daemon.options import CannotStart, Options
from controller.outputs.bucket import fingerprint_of
from controller.store.base import BEFORE_BUCKET, Boot, Snapshot, Store
from controller.vault import KeyFile, Vault

log = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller knows once its store is open."""

    boot: Boot
    snapshot: Snapshot
    key: asyncssh.SSHKey
    vault: Vault


async def take_lead(options: Options, store: Store, leading: Leading) -> Known:
    """Raises StoreError, IdentityUnusable, KeyUnusable."""
    # It takes the lease: only its holder may make keys and tokens in the data folder.
    boot = await store.open()
    # A long history may take longer to load than the lease lasts, at this controller and at the
    # next one, and none would ever lead.
    async with lease_kept(options, store, leading):
        return await _loaded(options, store, boot)


async def _loaded(options: Options, store: Store, boot: Boot) -> Known:
    """Raises StoreError, IdentityUnusable, KeyUnusable."""
    await asyncio.to_thread(identity.tie, options.data, boot.installation_id)
    snapshot = await store.load()
    far = sorted(node.name for node in snapshot.nodes if not node.address.local_socket)
    key = await asyncio.to_thread(identity.ssh_identity, options.data, far)
    snapshot = await identity.ensure_admin(store, snapshot, options.data, SystemClock().now())
    vault = await asyncio.to_thread(open_vault, options, snapshot)
    if options.peers is not None:
        # The first leader has just made its keys: the others compare theirs with them.
        options.peers.keys = await asyncio.to_thread(fingerprint, options)
    return Known(boot=boot, snapshot=snapshot, key=key, vault=vault)


def fingerprint(options: Options) -> str | None:
    """Return `Peer.keys` of this controller. Blocking. Raises CannotStart."""
    try:
        keys = identity.fingerprint(options.data, options.secrets_key_file)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error
    buckets = fingerprint_of(options.bucket, options.logs_bucket)
    return f"{keys}{BEFORE_BUCKET}{buckets}" if keys is not None and buckets else keys


def tie(options: Options, installation_id: str) -> None:
    """Blocking. Raises CannotStart."""
    try:
        identity.tie(options.data, installation_id)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error


def installation_of(options: Options) -> str | None:
    """Blocking. Raises CannotStart."""
    try:
        return identity.installation_of(options.data)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error


def warn_of_open_keys(options: Options) -> None:
    """Blocking."""
    data, names = options.data, (identity.IDENTITY_NAME, identity.ADMIN_TOKEN_NAME)
    for path in identity.open_to_others(
        (*(data / name for name in names), options.secrets_key_file)
    ):
        log.warning("others than this controller's user can read %s: chmod 600 %s", path, path)


def open_vault(options: Options, snapshot: Snapshot) -> Vault:
    """Blocking. Raises KeyUnusable."""
    key = KeyFile.open(options.secrets_key_file, sealed=len(snapshot.secrets))
    vault = Vault(key, snapshot.secrets)
    if unopened := vault.unopened():
        # No refusal: after its key was lost, an installation goes on with a new one.
        log.warning(
            "%s does not open %d of %d stored secrets, and jobs that name them can't start: if it "
            "is the key of another installation, put the right one there; else store them again",
            options.secrets_key_file,
            unopened,
            len(snapshot.secrets),
        )
    return vault
