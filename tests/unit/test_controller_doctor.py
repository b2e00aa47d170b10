"""Each fault of a controller's surroundings is found and has a fix; what is right is told too."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.doctor import findings, gathering
from controller.doctor.facts import Certificate, ConfigFile, Facts, Setup
from controller.lifecycle.machines.model import Machine, MachineStatus, Offer
from controller.outputs.bucket import Bucket, fingerprint_of
from controller.outputs.examination import BucketFacts
from controller.store import schema
from controller.store.base import BEFORE_BUCKET, Changes, Peer, Sight
from controller.store.examination import DatabaseFacts
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.tls import CertificateFiles
from fairlead.cli.main import run
from fairlead.wire.node import Finding, FindingLevel
from tests.support.ssh_daemon import free_port

DATA = Path("/data")
URL, OTHER, THIRD = (f"https://c{number}.example:8700" for number in (1, 2, 3))
NOW = 1000.0
KEYS = f"k{BEFORE_BUCKET}{fingerprint_of(Bucket(name='ours'), Bucket(name='ours'))}"
"""A controller resolves where its logs are before it shows itself."""


def peer(url: str, **changes: Any) -> Peer:
    first: dict[str, Any] = {"id": url, "url": url, "version": "0.1.0", "keys": KEYS}
    times = {"started_at": 1.0, "seen_at": NOW}
    leads = {"leads": url == URL, "has_lock": url == URL}
    return Peer(**{**first, **times, **leads, **changes})


def sight(*peers: Peer) -> Sight:
    return Sight(now=NOW, peers=peers, may_lead=False)


def setup(data: Path = DATA, **changes: Any) -> Setup:
    own: dict[str, Any] = {"listen": ("0.0.0.0", 8700), "url": URL}
    own |= {"secrets_key": data / "secrets.key", "database": SqliteDatabase(data)}
    return Setup(**{"data": data, **own, **changes})


GOOD_DATABASE = DatabaseFacts(
    kind="postgresql",
    seconds=0.001,
    server=150004,
    schema=schema.SCHEMA_VERSION,
    holder="process 7 on c1",
    lease_left=4.0,
    is_locked=True,
    sight=sight(peer(URL), peer(OTHER)),
)
MACHINE = Machine(
    id="m1",
    name="burst-1",
    fleet="burst",
    offer=Offer(
        provider="aws-eu", instance_type="small", region="eu-1", price=1.0, cpu=1, memory=1, disk=1
    ),
    token="token",
    ordered_at=1.0,
)
BUCKET = BucketFacts(bucket=Bucket(name="ours"), option="--bucket")
GOOD = Facts(
    setup=setup(bucket=BUCKET.bucket),
    buckets=(BUCKET,),
    database=GOOD_DATABASE,
    free=100 << 30,
    total=200 << 30,
    keys="k",
    answers={URL: None, OTHER: None},
    listens=True,
    certificate=Certificate(ends_in_days=60.0, names=("*.example",)),
)


def changed(**changes: Any) -> Facts:
    return msgspec.structs.replace(GOOD, **changes)


def of_database(**changes: Any) -> Facts:
    return changed(database=msgspec.structs.replace(GOOD_DATABASE, **changes))


def faults(found: list[Finding]) -> list[str]:
    return [f"{one.level} {one.check}: {one.message}" for one in found if one.fix]


def test_a_healthy_controller_is_told_so_in_each_check() -> None:
    found = findings.examine(GOOD)
    assert faults(found) == []
    checks = {one.check for one in found}
    assert checks == {
        *("disk", "keys", "database", "schema", "leader", "clock", "others", "address", "port"),
        *("tls", "bucket", "config", "value"),
    }


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (
            changed(buckets=(msgspec.structs.replace(BUCKET, why="no such bucket"),)),
            "error bucket: s3://ours (--bucket) cannot be used: no such bucket",
        ),
        (
            changed(buckets=(msgspec.structs.replace(BUCKET, owner="theirs"),)),
            "error bucket: s3://ours (--bucket) belongs to the installation theirs",
        ),
        (
            changed(
                buckets=(msgspec.structs.replace(BUCKET, option="--logs-bucket", owner="theirs"),)
            ),
            "error bucket: s3://ours (--logs-bucket) belongs to the installation theirs",
        ),
        (
            changed(buckets=(msgspec.structs.replace(BUCKET, clock_ahead=-400.0),)),
            "error bucket: the clock of s3://ours (--bucket) is 400 s behind this one",
        ),
        (
            changed(
                buckets=(
                    msgspec.structs.replace(BUCKET, option="--outputs-bucket", why="no such key"),
                )
            ),
            "error bucket: s3://ours (--outputs-bucket) cannot be used: no such key",
        ),
        (
            msgspec.structs.replace(
                of_database(users=frozenset({"ada"})),
                setup=setup(config=ConfigFile(path=Path("/c.yaml"), limited=frozenset({"adda"}))),
            ),
            "warning config: budget.users.adda limits nobody: there is no user adda; did you mean",
        ),
        (
            changed(setup=setup(bucket=None, outputs_bucket=BUCKET.bucket)),
            "warning value: /data alone has the keys, uploads, small outputs and all lists of",
        ),
        (
            changed(setup=setup(bucket=None)),
            "warning value: /data alone has the keys, uploads, outputs, the history of use, logs",
        ),
        (changed(folder="Permission denied"), "error disk: /data cannot be used: Permission"),
        (changed(free=1 << 20), "error disk: 0.0 GiB of 200 are free below /data: logs and"),
        (changed(free=5 << 30), "warning disk: 5.0 GiB of 200 are free"),
        (
            changed(missing_keys=(DATA / "secrets.key",), keys=None),
            "error keys: secrets.key is missing, and other controllers have theirs",
        ),
        (
            changed(setup=setup(bucket=Bucket(name="ours", prefix="another"))),
            "error bucket: https://c2.example:8700 has others than this controller, which won't",
        ),
        (changed(keys="x"), "error keys: they are not those of https://c2.example:8700"),
        (changed(open_keys=(DATA / "secrets.key",)), "error keys: others can read /data/secrets"),
        (changed(unusable_keys="cannot use x"), "error keys: cannot use x"),
        (changed(installation="a1"), "error database: /data belongs to the installation a1, and"),
        (of_database(why="connection refused"), "error database: it cannot be used: connection"),
        (of_database(server=120001), "error database: PostgreSQL 12.1 is too old"),
        (of_database(encoding="LATIN1"), "error database: its encoding is LATIN1"),
        (of_database(is_read_only=True), "error database: the server is a standby"),
        (of_database(is_pooled=True), "warning database: a pool gives each transaction"),
        (of_database(may_create=False, schema=None), "error database: its user may not make"),
        (of_database(seconds=0.2), "warning database: PostgreSQL 15.4 answers in 200 ms"),
        (of_database(schema="9999"), "error schema: it is 9999; this version knows"),
        (of_database(schema="0007"), "warning schema: it is 0007; this version makes it"),
        (of_database(lease_left=-7.0), "error leader: nobody leads: the lease was for 7 s not"),
        (of_database(lease_left=None), "error leader: nobody leads: the lease was never"),
        (of_database(is_locked=False), "warning leader: https://c1.example:8700 leads without"),
        (
            of_database(sight=sight(peer(URL, free=0), peer(OTHER, free=0))),
            "warning leader: https://c1.example:8700 leads although its disk is full",
        ),
        (of_database(clock_offset=400.0), "error clock: this machine's clock is 400.0 s ahead of"),
        (of_database(clock_offset=-2.0), "warning clock: this machine's clock is 2.0 s behind"),
        (
            of_database(sight=sight(peer(URL), peer(OTHER, seen_at=1.0))),
            "warning others: gone: https://c2.example:8700",
        ),
        (of_database(sight=sight(peer(URL))), "warning others: one controller is up: nobody takes"),
        (
            of_database(sight=sight(peer(URL), peer(OTHER, version="0.2.0"))),
            "warning others: they have versions 0.1.0, 0.2.0",
        ),
        (
            of_database(sight=sight(peer(URL), peer(OTHER, version="0.3.0"))),
            "error versions: 0.3.0 and 0.1.0 cannot share a database",
        ),
        (changed(answers={OTHER: "refused"}), f"error address: {OTHER} (another controller's"),
        (changed(answers={URL: "refused"}), f"error address: {URL} (--url) does not answer"),
        (
            changed(setup=setup(url="http://127.0.0.1:8700", listen=("127.0.0.1", 8700))),
            "error address: http://127.0.0.1:8700 leads each machine to itself",
        ),
        (changed(port="Address already in use"), "error port: 0.0.0.0:8700 cannot be had"),
        (changed(certificate="no PEM"), "error tls: no PEM"),
        (
            changed(certificate=Certificate(ends_in_days=-1.0, names=("c1.example",))),
            "error tls: the certificate has expired",
        ),
        (
            changed(certificate=Certificate(ends_in_days=3.0, names=("c1.example",))),
            "warning tls: the certificate ends in 3 days",
        ),
        (
            changed(certificate=Certificate(ends_in_days=99.0, names=("c9.example",))),
            "error tls: the certificate is for c9.example",
        ),
        (changed(certificate=None), "warning tls: --url says https, and there is no certificate"),
        (
            changed(certificate=None, setup=setup(url="http://c1.example:8700")),
            "warning tls: tokens and logs go over the network without TLS",
        ),
    ],
)
def test_each_fault_is_found_and_has_a_fix(facts: Facts, fault: str) -> None:
    found = faults(findings.examine(facts))
    assert [one for one in found if one.startswith(fault)], found


def test_before_its_first_start_a_controller_need_not_answer() -> None:
    facts = changed(
        answers={URL: "refused", OTHER: None},
        listens=False,
        database=msgspec.structs.replace(GOOD_DATABASE, sight=sight(peer(OTHER), peer(THIRD))),
    )
    assert faults(findings.examine(facts)) == []
    taken = msgspec.structs.replace(facts, port="Address already in use")
    assert f"error address: {URL} (--url) does not" in " ".join(faults(findings.examine(taken)))


NEWER = "0.2.0"
OLDER_SCHEMA = "0008"


def test_an_upgrade_is_possible_in_the_right_order() -> None:
    found = findings.upgrade(of_database(schema=OLDER_SCHEMA), NEWER)
    assert not [one for one in found if one.level is FindingLevel.ERROR]
    messages = " ".join(one.message for one in found)
    assert "0.2.0 can wait next to 0.1.0, and takes over from it" in messages
    assert f"{OTHER} wait with the earlier version" in messages
    assert f"stop {URL} last" in messages
    assert f"this version makes it {schema.SCHEMA_VERSION}" in messages


@pytest.mark.parametrize(
    ("facts", "version", "fault"),
    [
        (of_database(schema="9999"), "0.1.0", "error schema: it is 9999; this version knows"),
        (GOOD, "0.3.0", "error versions: 0.1.0 and 0.3.0 cannot share a database"),
        (GOOD, "1.1.0", "error versions: 0.1.0 and 1.1.0 cannot share a database"),
        (of_database(sight=None), NEWER, "error versions: a controller without --url is up"),
        (of_database(why="refused"), NEWER, "error database: it cannot be used: refused"),
        (of_database(encoding="LATIN1"), NEWER, "error database: its encoding is LATIN1"),
        (of_database(clock_offset=3600.0), NEWER, "error clock: this machine's clock is 3600.0 s"),
        (
            changed(setup=setup(config=ConfigFile(path=Path("/c.yaml"), fault="no rate"))),
            NEWER,
            "error config: no controller starts with it: no rate",
        ),
        (
            of_database(machines=(MACHINE,)),
            NEWER,
            "error config: no controller starts like this: machine burst-1 lives at provider aws",
        ),
        (
            msgspec.structs.replace(
                of_database(machines=(MACHINE,)),
                setup=setup(config=ConfigFile(path=Path("/c.yaml"), regions={"aws-eu": ("x",)})),
            ),
            NEWER,
            "error config: no controller starts like this: machine burst-1 lives at region eu-1",
        ),
        (changed(keys="x"), NEWER, "error keys: they are not those of https://c2.example:8700"),
        (
            changed(buckets=(msgspec.structs.replace(BUCKET, owner="theirs"),)),
            NEWER,
            "error bucket: s3://ours (--bucket) belongs to the installation theirs",
        ),
    ],
)
def test_what_cannot_run_next_to_the_others_is_said(facts: Facts, version: str, fault: str) -> None:
    found = faults(findings.upgrade(facts, version))
    assert [one for one in found if one.startswith(fault)], found


def test_nobody_is_up() -> None:
    found = findings.upgrade(of_database(sight=sight(), lease_left=-1.0), NEWER)
    assert "no other controller is up" in [one.message for one in found]


def test_the_command_looks_at_a_folder_with_sqlite(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, port = ["--data", str(tmp_path / "data")], free_port()
    assert run(["controller", "doctor", *data, "--listen", f"127.0.0.1:{port}"]) == 0
    told = capfd.readouterr().out
    assert f"127.0.0.1:{port} is free" in told
    assert "id_ed25519 and secrets.key are made by the first start" in told
    assert not (tmp_path / "data").exists()
    assert run(["controller", "upgrade-check", *data, "--json"]) == 0
    (schema_is, versions) = msgspec.json.decode(capfd.readouterr().out)["findings"]
    assert (schema_is["check"], versions["message"]) == ("schema", "no other controller is up")
    (tmp_path / "key").write_text("no key")
    assert run(["controller", "upgrade-check", *data, "--secrets-key-file", f"{tmp_path}/key"]) == 1
    assert "error    keys" in capfd.readouterr().out


AWS = {
    "type": "aws",
    "regions": {
        "eu-central-1": {
            "image": "ami-0123456789abcdef0",
            "subnets": {"eu-central-1a": "subnet-0123456789abcdef0"},
            "security_groups": ["sg-0123456789abcdef0"],
        }
    },
}
PROGRAM = {"type": "exec", "command": ["/bin/true"]}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"providers": {"a": AWS, "b": {**PROGRAM, "currency": "EUR"}}}, "(a in USD, b in EUR)"),
        ({"providers": {"a": AWS, "b": {**PROGRAM, "price": 1}}}, "providers.b.price"),
        ({"budgets": {}}, "budgets"),
    ],
)
def test_a_file_with_which_no_controller_starts_is_found_before_an_upgrade(
    written: dict[str, Any], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert upgrade_check(tmp_path, written) == 1
    shown = capfd.readouterr().out
    assert "error    config" in shown
    assert told in shown


def test_a_file_with_a_rate_can_be_used(tmp_path: Path) -> None:
    euros = {**PROGRAM, "currency": "EUR", "rate": 1.1}
    assert upgrade_check(tmp_path, {"currency": "USD", "providers": {"b": euros}}) == 0


def upgrade_check(folder: Path, written: dict[str, Any]) -> int:
    file = folder / "controller.yaml"
    file.write_text(json.dumps(written))
    data = str(folder / "data")
    return run(["controller", "upgrade-check", "--data", data, "--config", str(file)])


def test_a_machine_that_lives_is_found_in_the_database(tmp_path: Path) -> None:
    gone = msgspec.structs.replace(
        MACHINE, id="m0", status=MachineStatus.TERMINATED, terminated_at=2.0
    )
    asyncio.run(_keep(tmp_path, MACHINE, gone))
    facts = gathering.gather_shared(setup(tmp_path))
    assert facts.database.machines == (MACHINE,)


async def _keep(folder: Path, *machines: Machine) -> None:
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    await store.commit(Changes(machines={one.id: one for one in machines}))
    await store.close()


def test_a_file_that_is_no_database_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("controller.db").write_bytes(b"no database" * 100)
    assert run(["controller", "upgrade-check", "--data", str(tmp_path)]) == 1
    assert "it cannot be used" in capsys.readouterr().out


def test_a_taken_port_and_a_wrong_certificate_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_ANSWER_SECONDS", 0.1)  # the port never answers
    broken = tmp_path / "c.pem"
    broken.write_text("no PEM")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = taken.getsockname()
        files = CertificateFiles(certificate=broken, key=broken)
        facts = gathering.gather(setup(tmp_path, listen=listen, url=None, tls=files))
    assert facts.port == "Address already in use"
    assert isinstance(facts.certificate, str)
    assert str(broken) in facts.certificate


def test_the_bucket_of_large_outputs_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys need not allow to list it."""
    asked: list[tuple[str, bool]] = []

    def looked(bucket: Bucket, option: str, installation: str | None, *, lists: bool) -> object:
        asked.append((option, lists))
        return BUCKET

    monkeypatch.setattr(gathering, "bucket_facts", looked)
    large = Bucket(name="large")
    gathering._bucket_facts(setup(bucket=BUCKET.bucket, outputs_bucket=large), None)
    assert asked == [("--bucket", True), ("--outputs-bucket", False)]
