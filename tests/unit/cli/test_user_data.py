"""`node user-data` and `node register`: a node is announced, and its address told."""

from __future__ import annotations

import email
import email.policy
import json
from pathlib import Path

import pytest
import yaml

from fairlead.cli.commands.nodes.user_data import parse_address
from fairlead.cli.errors import CliError
from tests.unit.cli.conftest import Fairlead
from tests.unit.cli.output import of


async def test_user_data_is_printed_alone_and_the_next_step_is_told(start: Fairlead) -> None:
    told = await of(start, "node", "user-data", "gpu-1", "--volume-prefix", "/data")
    assert told.status == 0
    assert told.out.startswith(b"#cloud-config\n")
    assert yaml.safe_load(told.out)["runcmd"][0][-2:] == ["--volume-prefix", "/data"]
    assert "fairlead node register gpu-1 --address HOST" in told.err
    assert "PRIVATE KEY" not in told.err
    listed = (await of(start, "node", "ls")).out
    assert b"expected" in listed
    assert b"waits for `fairlead node register gpu-1" in listed


async def test_an_expected_node_is_registered(start: Fairlead) -> None:
    await of(start, "node", "user-data", "gpu-1")
    done = await of(start, "node", "register", "gpu-1", "--address", "10.0.0.5:2222")
    assert (done.status, done.out) == (0, b"node gpu-1 registered\n")
    shown = json.loads((await of(start, "node", "show", "gpu-1", "--json")).out)
    assert (shown["status"], shown["address"]) == ("connecting", "fairlead@10.0.0.5:2222")


async def test_own_user_data_comes_along_as_a_second_part(start: Fairlead, tmp_path: Path) -> None:
    own = tmp_path / "own.sh"
    own.write_text("#!/bin/sh\necho grüße\n")
    told = await of(start, "node", "user-data", "gpu-1", "--user-data", str(own))
    message = email.message_from_bytes(told.out, policy=email.policy.default)
    ours, theirs = message.iter_parts()
    assert [part.get_content_type() for part in (ours, theirs)] == [
        "text/cloud-config",
        "text/x-shellscript",
    ]
    assert theirs.get_content() == own.read_text()
    assert yaml.safe_load(ours.get_content())["hostname"] == "gpu-1"


@pytest.mark.parametrize("content", ["packages: [git]\n", "\udcff"])
async def test_own_user_data_that_cloud_init_would_ignore_is_refused(
    start: Fairlead, tmp_path: Path, content: str
) -> None:
    own = tmp_path / "own.yaml"
    own.write_bytes(content.encode("utf-8", "surrogateescape"))
    refused = await of(start, "node", "user-data", "gpu-1", "--user-data", str(own))
    assert (refused.status, f"--user-data {own}" in refused.err) == (2, True)
    assert b"gpu-1" not in (await of(start, "node", "ls")).out


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5", ("10.0.0.5", 22)),
        ("gpu.example:2222", ("gpu.example", 2222)),
        ("fd00::5", ("fd00::5", 22)),
        ("[fd00::5]", ("fd00::5", 22)),
        ("[fd00::5]:2222", ("fd00::5", 2222)),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":22", "host:", "host:ssh", "host:70000"])
def test_a_string_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="is not HOST or HOST:PORT"):
        parse_address(text)
