"""The vault: what is sealed opens with its key alone, for its owner and name alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from msgspec.structs import replace

from controller.store.accounts import StoredSecret
from controller.store.base import Changes
from controller.vault import KeyFile, KeyUnusable, SecretMissing, Vault

CANARY = "canary-7b1f"


def stored(vault: Vault, user: str | None, name: str, value: str = CANARY) -> StoredSecret:
    secret = StoredSecret(
        id=f"{user}-{name}",
        user=user,
        name=name,
        sealed=vault.sealed(user, name, value),
        created_at=0.0,
        updated_at=0.0,
    )
    vault.apply(Changes(secrets=(secret,)))
    return secret


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.key"


@pytest.fixture
def vault(path: Path) -> Vault:
    return Vault(KeyFile.open(path))


def test_a_secret_comes_back_and_is_not_in_what_is_stored(vault: Vault, path: Path) -> None:
    secret = stored(vault, "ada", "TOKEN")
    assert vault.value("ada", "TOKEN") == CANARY
    assert CANARY not in secret.sealed + repr(secret) + path.read_text()


def test_the_key_is_readable_for_its_owner_alone_and_stays(vault: Vault, path: Path) -> None:
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = stored(vault, "ada", "TOKEN")
    assert Vault(KeyFile.open(path, sealed=1), [secret]).value("ada", "TOKEN") == CANARY
    assert path.read_bytes() == before


def test_an_own_secret_goes_before_a_shared_one_of_its_name(vault: Vault) -> None:
    stored(vault, None, "TOKEN", "of all")
    assert vault.value("ada", "TOKEN") == "of all"
    stored(vault, "ada", "TOKEN", "of ada")
    assert (vault.value("ada", "TOKEN"), vault.value("bob", "TOKEN")) == ("of ada", "of all")


def test_a_secret_of_another_user_is_missing(vault: Vault) -> None:
    stored(vault, "ada", "TOKEN")
    with pytest.raises(SecretMissing, match="there is no secret TOKEN of bob: store it with"):
        vault.value("bob", "TOKEN")


def test_the_secrets_of_a_removed_user_are_gone(vault: Vault) -> None:
    stored(vault, "ada", "TOKEN")
    vault.apply(Changes(removed_users=("ada",)))
    assert vault.all() == ()


@pytest.mark.parametrize(("user", "name"), [("bob", "TOKEN"), ("ada", "OTHER")])
def test_a_sealed_value_that_was_moved_in_the_database_does_not_open(
    vault: Vault, user: str, name: str
) -> None:
    secret = stored(vault, "ada", "TOKEN")
    vault.apply(Changes(secrets=(replace(secret, id="moved", user=user, name=name),)))
    with pytest.raises(SecretMissing, match="cannot be opened"):
        vault.value(user, name)


def test_after_a_rotation_only_the_new_key_is_there_and_opens_all(path: Path, vault: Vault) -> None:
    secret, before = stored(vault, "ada", "TOKEN"), path.read_bytes()
    vault.keys.begin_rotation()
    new = vault.resealed(secret)
    assert new is not None
    vault.keys.end_rotation()
    assert len(path.read_bytes().split()) == 1
    assert path.read_bytes() != before
    assert Vault(KeyFile.open(path, sealed=1), [new]).value("ada", "TOKEN") == CANARY
    with pytest.raises(SecretMissing, match="cannot be opened"):
        Vault(KeyFile.open(path, sealed=1), [secret]).value("ada", "TOKEN")


def test_a_rotation_that_was_cut_off_goes_on_with_the_key_that_it_made(
    path: Path, vault: Vault
) -> None:
    secret = stored(vault, "ada", "TOKEN")
    vault.keys.begin_rotation()
    cut_off = path.read_bytes()
    again = Vault(KeyFile.open(path, sealed=1), [secret])
    assert again.value("ada", "TOKEN") == CANARY
    again.keys.begin_rotation()
    assert path.read_bytes() == cut_off
    assert again.resealed(secret) is not None


def test_a_missing_file_is_not_replaced_while_secrets_need_its_key(path: Path) -> None:
    with pytest.raises(KeyUnusable, match=r"is not there, and 3 stored secrets need its key: put"):
        KeyFile.open(path, sealed=3)
    assert not path.exists()
    path.touch()
    KeyFile.open(path, sealed=3)
    assert path.read_bytes().strip()


@pytest.mark.parametrize("content", [b"hunter2\n", Fernet.generate_key() + b"\nx\n"])
def test_a_file_without_a_key_is_refused_by_its_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(KeyUnusable, match=r"secrets.key is no key of stored secrets") as refused:
        KeyFile.open(path)
    assert "hunter2" not in str(refused.value)
