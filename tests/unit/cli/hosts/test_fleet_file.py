"""`type: fleet`: a host says what its fleet does not; what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.commands.hosts.connection import Jump, Target
from controller.commands.hosts.fleet_file import FleetWish, read_fleet
from controller.commands.hosts.install import with_blocks
from controller.service.machines.rented import policy_of
from fairlead.cli.commands.runs.applying import is_fleet
from fairlead.configuration.convert import ConfigurationError
from fairlead.submission import read_document

FILE = """\
type: fleet
name: training
placement: rack
attributes: {site: berlin}
user: ubuntu
identity_file: keys/id
jump: me@gate
blocks: auto
hosts:
  - 10.0.0.5
  - host: Gpu-2.example
    name: gpu-2
    user: root
    port: 2222
    identity_file: /keys/other
    docker: use
    blocks: 4
    attributes: {rack: r2}
    volume_prefixes: [/data]
"""


def read(tmp_path: Path, text: str = FILE) -> FleetWish:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    document = read_document(file)
    assert is_fleet(document)
    return read_fleet(document.data, tmp_path)


def test_a_host_has_what_its_fleet_says(tmp_path: Path) -> None:
    wish = read(tmp_path)
    first = wish.hosts[0]
    assert (wish.name, wish.placement, wish.attributes) == ("training", "rack", {"site": "berlin"})
    assert first.target == Target(
        host="10.0.0.5",
        user="ubuntu",
        identity=tmp_path / "keys/id",
        jump=Jump(host="gate", user="me", identity=tmp_path / "keys/id"),
    )
    assert (first.name, first.address, first.docker) == ("10.0.0.5", ("10.0.0.5", 22), None)
    assert (first.blocks, first.options, first.attributes) == ("auto", (), {})


def test_a_hosts_own_settings_override_those_of_the_fleet(tmp_path: Path) -> None:
    second = read(tmp_path).hosts[1]
    assert second.target == Target(
        host="Gpu-2.example",
        port=2222,
        user="root",
        identity=Path("/keys/other"),
        jump=Jump(host="gate", user="me", identity=Path("/keys/other")),
    )
    assert (second.name, second.docker, second.blocks) == ("gpu-2", "use", "4")
    assert second.attributes == {"rack": "r2"}
    assert second.options == ("--volume-prefix", "/data")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("type: fleet\nname: f\n", "hosts"),
        ("type: fleet\nname: f\nhosts: [{host: a, usr: b}]\n", "hosts[0].usr"),
        ("type: fleet\nname: f\nhosts: [{name: a}]\n", "hosts[0].host"),
        ("type: fleet\nname: f\nhosts: [{host: a, port: 70000}]\n", "hosts[0].port"),
        ("type: fleet\nname: f\nhosts: [a, A]\n", "hosts[1]"),
        ("type: fleet\nname: f\nhosts: []\ndocker: maybe\n", "docker"),
        ("type: fleet\nname: f\nhosts: [{host: a, name: A b}]\n", "hosts[0].name"),
        ("type: fleet\nname: f\nhosts: ['fe80::1']\n", "hosts[0]"),
        ("type: fleet\nname: f\nhosts: [a]\nvolume_prefixes: [x]\n", "volume_prefixes"),
        (
            "type: fleet\nname: f\nhosts: [{host: a, volume_prefixes: [/a/..]}]\n",
            "hosts[0].volume_prefixes",
        ),
        ("type: fleet\nname: f\nhosts: [a]\nattributes: {ok: a, rack: [a]}\n", "attributes.rack"),
        (
            "type: fleet\nname: f\nhosts: [a, {host: b, attributes: {z: 1}}]\n",
            "hosts[1].attributes.z",
        ),
        ("type: fleet\nname: f\nhosts: [a]\nregistry_mirror: ftp://x\n", "registry_mirror"),
        ("type: fleet\nname: f\nhosts: [a]\njob_metadata: yes\n", "job_metadata"),
        ("type: fleet\nname: f\nhosts: [a]\ngateway_port: 65536\n", "gateway_port"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert caught.value.field == field


def test_a_field_of_dstack_is_told_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="write its user, identity_file, port and hosts"):
        read(tmp_path, "type: fleet\nname: f\nssh_config: {user: a, hosts: [b]}\n")
    with pytest.raises(ConfigurationError) as wrong:
        read(tmp_path, "type: fleet\nname: f\ncolour: red\n")
    assert "registry_mirror" in str(wrong.value.allowed)


def test_the_metadata_service_is_opened_for_a_fleet_or_a_host(tmp_path: Path) -> None:
    text = "type: fleet\nname: f\njob_metadata: open\nhosts: [a, {host: b, job_metadata: closed}]\n"
    first, second = read(tmp_path, text).hosts
    assert first.options == ("--job-metadata", "open")
    assert second.options == ("--job-metadata", "closed")


def test_a_port_for_gateways_is_opened_for_a_fleet_and_taken_from_a_host(tmp_path: Path) -> None:
    text = "type: fleet\nname: f\ngateway_port: 8443\nhosts: [a, {host: b, gateway_port: 0}]\n"
    first, second = read(tmp_path, text).hosts
    assert first.options == ("--gateway-port", "8443")
    assert second.options == ("--gateway-port", "0")


@pytest.mark.parametrize("data", ["type: task\n", "[fleet]\n", "fleet\n"])
def test_other_files_are_no_fleets(tmp_path: Path, data: Any) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(data)
    assert not is_fleet(read_document(file))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'FAIRLEAD_SHIM_OPTIONS="--blocks 4"\n'),
        ("# mine\nA=b\n", '# mine\nA=b\nFAIRLEAD_SHIM_OPTIONS="--blocks 4"\n'),
        (
            "FAIRLEAD_SHIM_OPTIONS=--blocks 2 --allow-privileged\n",
            'FAIRLEAD_SHIM_OPTIONS="--allow-privileged --blocks 4"\n',
        ),
        ('FAIRLEAD_SHIM_OPTIONS="--blocks=auto"\n', 'FAIRLEAD_SHIM_OPTIONS="--blocks 4"\n'),
    ],
)
def test_blocks_are_set_beside_the_operators_own_options(before: str, after: str) -> None:
    assert with_blocks(before, "4") == after
    assert with_blocks(after, "4") == after


RENTING = "type: fleet\nname: f\nmachines: {provider: lab, nodes: 0..2}\n"


def test_a_fleet_may_have_machines_in_place_of_hosts(tmp_path: Path) -> None:
    wish = read(tmp_path, RENTING + "budget: {per_hour: 3}\n")
    assert wish.hosts == ()
    assert wish.machines == {"provider": "lab", "nodes": "0..2"}
    assert wish.budget == {"per_hour": 3}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (RENTING + "budget: {per_hour: 0}\n", "budget.per_hour"),
        (RENTING.replace("0..2", "3..2"), "machines.nodes"),
        (RENTING.replace("provider: lab, ", ""), "machines.provider"),
        ("type: fleet\nname: f\nhosts: [a]\nbudget: {per_hour: 1}\n", "budget"),
    ],
)
def test_a_fleet_that_could_rent_nothing_is_refused(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ("{min: 1}", "its max is missing"),
        (
            "{min: 0, target: 1, max: 2}",
            "it has no `target`: the machines of its `min` are rented at once",
        ),
        ("{min: 0, most: 2}", "'most' is not a field of it"),
        ("0..", "'0..' has no max: a fleet never rents without limit"),
        ("{max: 2.5}", "its max, '2.5', is not a number of machines"),
        ("²..³", "'²..³' is no range of machines"),
        (f"0..{'9' * 5000}", "…' is no range of machines"),
    ],
)
def test_what_is_wrong_with_a_number_of_machines_is_said(
    tmp_path: Path, nodes: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, RENTING.replace("0..2", nodes))
    assert refused.value.field == "machines.nodes"
    assert f"{problem} (allowed: a mapping of min and max" in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "least", "most"),
    [("0..16", 0, 16), ("..4", 0, 4), ("2", 2, 2), ("'1 .. 3'", 1, 3), ("{max: 5}", 0, 5)],
)
def test_a_number_of_machines_is_written_as_users_of_dstack_do(
    tmp_path: Path, nodes: str, least: int, most: int
) -> None:
    machines = read(tmp_path, RENTING.replace("0..2", nodes)).machines
    assert machines is not None
    policy, _ = policy_of(machines, {})
    assert (policy.min, policy.max) == (least, most)


@pytest.mark.parametrize("field", ["idle_duration", "max_price", "regions", "resources"])
def test_a_field_of_dstack_is_sent_to_its_section(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigurationError, match="write it within `machines`") as refused:
        read(tmp_path, f"{RENTING}{field}: 1\n")
    assert refused.value.field == field


PULLING = "type: fleet\nname: f\nimages: ['python:3.12']\n"


def test_a_fleet_may_have_images_and_no_hosts(tmp_path: Path) -> None:
    auth = "registry_auth: {username: anna, password: '${{ secrets.REGISTRY }}'}\n"
    wish = read(tmp_path, PULLING + auth)
    assert (wish.hosts, wish.images) == ((), ["python:3.12"])
    assert wish.registry_auth == {"username": "anna", "password": "${{ secrets.REGISTRY }}"}
    assert read(tmp_path).images is None
    assert read(tmp_path, PULLING.replace("'python:3.12'", "")).images == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (PULLING.replace("python:3.12", "Python 3"), "images[0]"),
        (f"type: fleet\nname: f\nimages: [{', '.join(f'i{n}' for n in range(33))}]\n", "images"),
        ("type: fleet\nname: f\nimages: python\n", "images"),
        (PULLING + "registry_auth: {username: a, password: canary}\n", "registry_auth.password"),
        ("type: fleet\nname: f\nhosts: [a]\nregistry_auth: {username: a}\n", "registry_auth"),
    ],
)
def test_images_that_could_not_be_pulled_are_refused_without_the_password(
    tmp_path: Path, text: str, field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    assert refused.value.field == field
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_a_fleet_stops_renting_with_off(tmp_path: Path, off: str) -> None:
    wish = read(tmp_path, f"type: fleet\nname: f\nmachines: {off}\n")
    assert (wish.machines, wish.hosts) == ({}, ())


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("type: fleet\nname: f\nmachines: on\n", "machines"),
        ("type: fleet\nname: f\nmachines: many\n", "machines"),
        ("type: fleet\nname: f\nmachines: off\nbudget: {per_hour: 1}\n", "budget"),
    ],
)
def test_what_is_neither_a_mapping_nor_off_is_refused(
    tmp_path: Path, text: str, field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    assert refused.value.field == field
