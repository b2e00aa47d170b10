from __future__ import annotations

import pytest

from common.links import host_keys
from common.links.host_keys import BadHostKey
from tests.unit.links.sshd import HOST_KEYS

KINDS = pytest.mark.parametrize("kind", sorted(HOST_KEYS))


def line_of(kind: str) -> str:
    return host_keys.public_line(HOST_KEYS[kind])


@KINDS
@pytest.mark.parametrize(
    "form",
    [
        "{key}",
        "{key} root@node with a comment",
        "  {key}\n",
        "node.example,10.0.0.7 {key}",
        "[node.example]:2222 {key} comment",
        "|1|2UjBy0tHHmQmcFHxuWFDZ9LkaHo=|kY5mZTAoqh9Fj0rCmr7yUHNXcnk= {key}",
        "# node:22 SSH-2.0-OpenSSH_9.9\nnode {key}\n",
    ],
)
def test_a_key_is_read_from_every_usual_kind_of_line(kind: str, form: str) -> None:
    line = form.format(key=line_of(kind))
    assert host_keys.normalise(line) == line_of(kind)
    assert host_keys.fingerprint(line) == HOST_KEYS[kind].get_fingerprint()


@pytest.mark.parametrize(
    "line",
    [
        "",
        " \n",
        "# only a comment",
        "garbage",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 !!!!",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        "node ssh-ed25519 é",
        "-----BEGIN SOMETHING-----",
        "@revoked node " + line_of("ed25519"),
        line_of("ed25519") + "\n" + line_of("rsa"),
    ],
)
def test_a_line_that_is_not_one_key_is_refused(line: str) -> None:
    with pytest.raises(BadHostKey, match="OpenSSH public key"):
        host_keys.parse(line)
