"""Which host key is trusted: never one because it was seen first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.links.host_keys import fingerprint, public_line
from controller.commands.hosts.connection import HostError, Target
from controller.commands.hosts.trust import UnknownHostKey, trusted_key
from tests.unit.links.sshd import HOST_KEYS, STRANGER_KEY, sshd

KEYS = (HOST_KEYS["ed25519"], HOST_KEYS["rsa"])
PREFERRED, OTHER = map(public_line, KEYS)
STRANGER = public_line(STRANGER_KEY)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


async def chosen(*, host_key: str | None = None, **words: str | None) -> str:
    async with sshd(*KEYS) as server:
        target = Target(host="127.0.0.1", port=server.port)
        accepted, pinned = words.get("accepted"), words.get("pinned")
        return await trusted_key(target, host_key=host_key, accepted=accepted, pinned=pinned)


async def test_a_given_key_is_taken_unseen() -> None:
    assert await chosen(host_key=f"{STRANGER} comment") == STRANGER


@pytest.mark.parametrize("key", [PREFERRED, OTHER])
async def test_an_accepted_or_pinned_fingerprint_chooses_the_hosts_key(key: str) -> None:
    assert await chosen(accepted=fingerprint(key)) == key
    assert await chosen(pinned=fingerprint(key)) == key


async def test_a_host_with_another_key_than_the_pinned_one_is_refused() -> None:
    with pytest.raises(HostError, match="is pinned by the controller") as caught:
        await chosen(pinned=fingerprint(STRANGER))
    assert fingerprint(PREFERRED) in str(caught.value)


async def test_an_unknown_key_is_left_to_the_operator() -> None:
    with pytest.raises(
        UnknownHostKey, match=re.escape(f"--accept-host-key {fingerprint(PREFERRED)}")
    ):
        await chosen()


async def test_a_key_in_known_hosts_is_trusted(home: Path) -> None:
    async with sshd(*KEYS) as server:
        entry = f"[127.0.0.1]:{server.port} {OTHER}\n"
        (home / ".ssh/known_hosts").write_text(entry)
        target = Target(host="127.0.0.1", port=server.port)
        assert await trusted_key(target, host_key=None, accepted=None, pinned=None) == OTHER
