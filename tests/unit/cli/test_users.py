"""Users and tokens by command; a secret is shown once."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import Fairlead, Result


async def of(start: Fairlead, *arguments: str) -> Result:
    return await (await start(*arguments)).ended()


async def test_a_user_is_added_granted_listed_and_removed(start: Fairlead) -> None:
    added = await of(start, "user", "add", "bob", "--band", "production")
    assert (added.status, added.out[:3], added.out.count(b"\n")) == (0, b"fl_", 1)
    listed = (await of(start, "user", "list")).out
    assert [line.split()[:3] for line in listed.decode().splitlines()[1:]] == [
        ["ada", "user", "-"],
        ["admin", "admin", "-"],
        ["bob", "user", "production"],
    ]
    assert b"nothing beyond" in (await of(start, "user", "grant", "bob")).out
    assert (await of(start, "user", "remove", "bob")).out == b"user bob removed\n"
    again = await of(start, "user", "remove", "bob")
    assert (again.status, "there is no user 'bob'" in again.err) == (1, True)


async def test_a_user_is_shown_and_given_another_role(start: Fairlead) -> None:
    shown = (await of(start, "user", "show", "ada")).out.decode()
    assert shown.startswith("user ada (role user), granted nothing, since ")
    changed = (await of(start, "user", "set", "ada", "--role", "admin", "--json")).out
    assert json.loads(changed)["role"] == "admin"
    assert "role admin" in (await of(start, "user", "show", "ada")).out.decode()


async def test_a_token_is_added_listed_and_revoked(start: Fairlead) -> None:
    added = await of(start, "token", "add", "--user", "ada", "--label", "laptop", "--json")
    made = json.loads(added.out)
    listed = (await of(start, "token", "list", "--user", "ada")).out.decode()
    assert made["id"] in listed
    assert made["token"] not in listed
    assert (await of(start, "token", "revoke", made["id"])).status == 0
    assert made["id"] not in (await of(start, "token", "list")).out.decode()


async def test_a_wrong_role_or_band_is_a_usage_error(start: Fairlead) -> None:
    for wrong in (["--role", "king"], ["--band", "gold"]):
        assert (await of(start, "user", "add", "bob", *wrong)).status == 2


async def test_a_key_of_a_service_is_added_listed_and_revoked(start: Fairlead) -> None:
    added = await of(start, "service", "key", "add", "api", "--label", "ci")
    assert (added.status, added.out[:4], added.out.count(b"\n")) == (0, b"flk_", 1)
    (line,) = (await of(start, "service", "key", "list", "api")).out.decode().splitlines()[1:]
    id, *rest = line.split()
    assert rest[:3] == ["api", "admin", "ci"]
    assert added.out.decode().strip() not in line
    assert (await of(start, "service", "key", "revoke", id)).out.decode() == f"key {id} revoked\n"
    again = await of(start, "service", "key", "revoke", id)
    assert (again.status, "there is no key" in again.err) == (1, True)


async def test_a_secret_is_stored_from_a_file_or_standard_input_and_never_shown(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("canary-cli\n")
    stored = await of(start, "secret", "set", "HF", "--from-file", str(file))
    assert (stored.status, stored.out) == (0, b"secret HF stored\n")
    shared = await of(start, "secret", "set", "ALL", "--shared", "--from-file", str(file))
    assert shared.status == 0
    listed = (await of(start, "secret", "list")).out.decode()
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [["ALL", "all"], ["HF", "you"]]
    rotated = await of(start, "secret", "rotate-key")
    assert rotated.out == b"2 secrets have a new key\n"
    assert (await of(start, "secret", "delete", "HF")).out == b"secret HF deleted\n"
    assert (await of(start, "secret", "delete", "ALL", "--shared")).status == 0
    again = await of(start, "secret", "delete", "HF")
    assert (again.status, "there is no secret 'HF'" in again.err) == (1, True)
    shown = (listed, rotated.err, again.err, stored.err, stored.out.decode())
    assert "canary-cli" not in "".join(shown)


async def test_a_secret_that_is_no_text_is_refused_with_a_way_out(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\x00canary")
    refused = await of(start, "secret", "set", "HF", "--from-file", str(file))
    assert refused.status == 2
    assert "is not UTF-8 text; encode it first" in refused.err
    missing = await of(start, "secret", "set", "HF", "--from-file", str(tmp_path / "none"))
    assert (missing.status, "can't be read" in missing.err) == (2, True)
