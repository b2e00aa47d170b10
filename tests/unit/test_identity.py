"""The controller's files of its first start are private, durable, and made once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import asyncssh
import pytest

from common.tokens import digest
from controller import identity
from controller.daemon.boot import warn_of_open_keys
from controller.daemon.options import Options
from controller.identity import IdentityUnusable
from controller.lifecycle.model import Role
from controller.store.accounts import User
from controller.store.base import Changes, Snapshot
from controller.store.errors import StoreUnavailable
from tests.doubles.failing_stores import DiskFull
from tests.doubles.memory_store import MemoryDatabase, MemoryStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def started(database: MemoryDatabase, data: Path) -> Snapshot:
    store = MemoryStore(database)
    await store.open()
    snapshot = await identity.ensure_admin(store, await store.load(), data, now=1.0)
    await store.close()
    return snapshot


def test_the_ssh_key_is_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    first, again = identity.ssh_identity(tmp_path), identity.ssh_identity(tmp_path)
    assert identity.public_line(first) == identity.public_line(again)
    assert identity.public_line(first).startswith("ssh-ed25519 ")
    assert mode(tmp_path / identity.IDENTITY_NAME) == 0o600


def test_keys_that_others_can_read_are_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(data=tmp_path, secrets_key=tmp_path / "of-secrets")
    warn_of_open_keys(options)
    identity.ssh_identity(tmp_path)
    options.secrets_key_file.touch(mode=0o600)
    warn_of_open_keys(options)
    assert caplog.messages == []
    (tmp_path / identity.IDENTITY_NAME).chmod(0o644)
    options.secrets_key_file.chmod(0o660)
    warn_of_open_keys(options)
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        f"chmod 600 {tmp_path / name}" for name in (identity.IDENTITY_NAME, "of-secrets")
    ]


def test_a_damaged_ssh_key_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / identity.IDENTITY_NAME
    path.write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    with pytest.raises(IdentityUnusable, match=f"{path} is not a private key"):
        identity.ssh_identity(tmp_path)


def test_no_other_key_is_made_where_nodes_let_in_one_already(tmp_path: Path) -> None:
    path = tmp_path / identity.IDENTITY_NAME
    names = ["n1", "n2", "n3", "n4", "n5"]
    with pytest.raises(IdentityUnusable, match=f"{path} is not there, and n1, n2, n3 and 2 more"):
        identity.ssh_identity(tmp_path, names)
    assert not path.exists()
    made = identity.ssh_identity(tmp_path)
    assert identity.public_line(identity.ssh_identity(tmp_path, names)) == identity.public_line(
        made
    )


async def test_a_lost_token_is_made_again_for_an_admin_who_is_there(tmp_path: Path) -> None:
    database = MemoryDatabase()
    await started(database, tmp_path)
    store = MemoryStore(database)
    await store.open()
    zoe = User(name="zoe", role=Role.ADMIN, created_at=2.0)
    await store.commit(Changes(users=(zoe,), removed_users=(identity.ADMIN,)))
    await store.close()
    (tmp_path / identity.ADMIN_TOKEN_NAME).unlink()
    snapshot = await started(database, tmp_path)
    token = (tmp_path / identity.ADMIN_TOKEN_NAME).read_text().strip()
    assert [one.user for one in snapshot.tokens if one.digest == digest(token)] == ["zoe"]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(IdentityUnusable, match="missing/id_ed25519"):
        identity.ssh_identity(tmp_path / "missing")


async def test_the_first_start_makes_an_admin_and_a_token_that_is_stored_as_a_digest(
    tmp_path: Path,
) -> None:
    snapshot = await started(MemoryDatabase(), tmp_path)
    path = tmp_path / identity.ADMIN_TOKEN_NAME
    token = path.read_text().strip()
    assert mode(path) == 0o600
    assert [user.name for user in snapshot.users] == [identity.ADMIN]
    assert [stored.digest for stored in snapshot.tokens] == [digest(token)]
    assert token not in repr(snapshot)


async def test_the_second_start_changes_nothing(tmp_path: Path) -> None:
    database = MemoryDatabase()
    first = await started(database, tmp_path)
    token = (tmp_path / identity.ADMIN_TOKEN_NAME).read_text()
    assert await started(database, tmp_path) == first
    assert (tmp_path / identity.ADMIN_TOKEN_NAME).read_text() == token


async def test_a_lost_token_file_gets_a_new_token_for_the_same_admin(tmp_path: Path) -> None:
    database = MemoryDatabase()
    first = await started(database, tmp_path)
    (tmp_path / identity.ADMIN_TOKEN_NAME).unlink()
    second = await started(database, tmp_path)
    assert second.users == first.users
    assert len(second.tokens) == 2


async def test_a_token_that_cannot_be_written_is_not_stored(tmp_path: Path) -> None:
    database = MemoryDatabase()
    with pytest.raises(IdentityUnusable, match=r"cannot write .*admin-token"):
        await started(database, tmp_path / "missing")
    assert database.tokens == {}


async def test_a_token_that_is_not_stored_is_in_no_file_and_the_next_start_makes_one(
    tmp_path: Path,
) -> None:
    database = MemoryDatabase()
    await started(database, tmp_path)
    path = tmp_path / identity.ADMIN_TOKEN_NAME
    path.unlink()
    failing = DiskFull(MemoryStore(database))
    await failing.open()
    with pytest.raises(StoreUnavailable):
        await identity.ensure_admin(failing, await failing.load(), tmp_path, now=1.0)
    await failing.close()
    assert not path.exists()
    snapshot = await started(database, tmp_path)
    token = path.read_text().strip()
    assert digest(token) in {stored.digest for stored in snapshot.tokens}


def test_a_write_that_fails_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    identity.write_private(path, b"old")

    def fail(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        identity.write_private(path, b"new")
    assert path.read_bytes() == b"old"


def test_the_key_that_is_read_can_sign_in(tmp_path: Path) -> None:
    key = identity.ssh_identity(tmp_path)
    assert asyncssh.import_public_key(identity.public_line(key)) == key.convert_to_public()


def test_a_folder_is_tied_to_one_installation(tmp_path: Path) -> None:
    assert identity.installation_of(tmp_path) is None
    identity.tie(tmp_path, "0123456789abcdef")
    before = (tmp_path / identity.INSTALLATION_NAME).stat().st_ino
    identity.tie(tmp_path, "0123456789abcdef")
    assert (tmp_path / identity.INSTALLATION_NAME).stat().st_ino == before
    assert identity.installation_of(tmp_path) == "0123456789abcdef"
    assert mode(tmp_path / identity.INSTALLATION_NAME) == 0o600
