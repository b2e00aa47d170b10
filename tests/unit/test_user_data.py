"""A node boots with what the example in cloud-init/ shows."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from common.refusals import Invalid
from controller.service.machines.user_data import JoinPoint, Provider, UserData, render

EXAMPLE = Path(__file__).parents[2] / "cloud-init/user-data.example.yaml"
KIND = "OPENSSH PRIVATE KEY"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+XK8EfMlRDiwuR2PXDMZhYsKNAJsYlKFT8pCHPJ2cF"
DATA = UserData(
    name="gpu-1.berlin",
    fleet="training",
    expires_at=1_800_000_000.0,
    host_private_key=f"-----BEGIN {KIND}-----\nAAAA\n-----END {KIND}-----\n",
    host_public_key=KEY,
    tunnel_key=f"{KEY} fairlead-controller",
    volume_prefixes=("/data", "/dev/nvme1n1"),
    registry_mirror="https://mirror.example",
)

JOINING = msgspec.structs.replace(
    DATA,
    join=JoinPoint(host="controller.example", port=8701, certificate="ab" * 32),
    token="fl_token",
)


def test_the_example_is_what_is_rendered() -> None:
    assert EXAMPLE.read_text() == render(DATA)


def test_the_host_key_is_the_only_one_that_the_node_has() -> None:
    document = yaml.safe_load(render(DATA))
    assert document["ssh_deletekeys"]
    assert document["ssh_keys"] == {
        "ed25519_private": DATA.host_private_key,
        "ed25519_public": f"{DATA.host_public_key}\n",
    }


def test_a_node_that_joins_by_itself_has_a_unit_and_a_secret_that_root_alone_reads() -> None:
    document = yaml.safe_load(render(JOINING, Provider.AWS))
    files = {file["path"]: file for file in document["write_files"]}
    assert files["/etc/fairlead/join.json"]["permissions"] == "0600"
    assert json.loads(files["/etc/fairlead/join.json"]["content"]) == {
        "host": "controller.example",
        "port": 8701,
        "certificate": "ab" * 32,
        "name": DATA.name,
        "token": "fl_token",
    }
    unit = files["/etc/systemd/system/fairlead-join.service"]["content"]
    assert "/etc/fairlead/join.py" in unit
    assert "/usr/bin/python3" not in unit, "an image may have no Python but the bundle's"
    assert "fl_token" not in unit
    assert document["runcmd"][-1][-1] == "fairlead-join.service"


def test_each_option_is_a_word_of_its_own_and_no_shell_reads_it() -> None:
    hostile = msgspec.structs.replace(
        DATA, volume_prefixes=("/a;reboot",), registry_mirror=None, job_metadata="open"
    )
    (command,) = yaml.safe_load(render(hostile))["runcmd"]
    assert command == [
        "/opt/fairlead/current/install",
        "--tunnel-key",
        DATA.tunnel_key,
        "--volume-prefix",
        "/a;reboot",
        "--job-metadata",
        "open",
    ]


def test_a_provider_refuses_what_is_too_long_for_it() -> None:
    prefixes = tuple(f"/{number}/{'x' * 500}" for number in range(32))
    long = msgspec.structs.replace(DATA, volume_prefixes=prefixes)
    with pytest.raises(Invalid, match="aws takes 16384") as caught:
        render(long, Provider.AWS)
    assert caught.value.field == "provider"
    assert render(long, Provider.AZURE)


def test_a_rented_machine_has_its_leash_and_no_other_node_has_one() -> None:
    files = yaml.safe_load(render(msgspec.structs.replace(DATA, leash=7200.0)))["write_files"]
    found = {file["path"]: file["content"] for file in files}
    assert found["/etc/fairlead/rented.env"] == "FAIRLEAD_RENTED_OPTIONS=--leash 7200\n"
    assert "rented.env" not in render(DATA)


def test_a_rented_machine_is_told_which_host_key_to_replace() -> None:
    fresh = msgspec.structs.replace(DATA, leash=7200.0, fresh_host_key=True)
    files = yaml.safe_load(render(fresh))["write_files"]
    found = {file["path"]: file["content"] for file in files}
    told = "FAIRLEAD_HOST_KEY=/etc/ssh/ssh_host_ed25519_key\n"
    assert found["/etc/fairlead/rented.env"] == f"FAIRLEAD_RENTED_OPTIONS=--leash 7200\n{told}"
