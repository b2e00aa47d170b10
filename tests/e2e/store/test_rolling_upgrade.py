"""Controllers on one database are examined and upgraded one after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.store.test_leaders import Controllers
from tests.support.newer_version import NEWER, NEWER_SCHEMA, newer_programs
from tests.support.object_storage import ObjectStorage
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess, run_cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def two(database_url: str, tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(tmp_path, database_url)
    made.all.pop()
    with closing(made):
        made.start()
        yield made


def doctor(one: ControllerProcess, database: str, *options: str | Path) -> dict[str, list[str]]:
    """The messages of each check, the level before them."""
    own = ["--url", one.url, "--listen", one.url.removeprefix("http://"), *options]
    asked = run_cli("controller", "doctor", "--data", one.data, "--database", database, *own)
    found: dict[str, list[str]] = {}
    for line in asked.output.splitlines():
        if not line.startswith(" "):
            level, check, message = line.split(None, 2)
            found.setdefault(check, []).append(f"{level} {message}")
    return found


def test_the_doctor_takes_equal_buckets_of_controllers_for_equal(
    database_url: str, tmp_path: Path, storage: ObjectStorage
) -> None:
    place = msgspec.structs.replace(storage.bucket, prefix="doctor")
    options = ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]
    made = Controllers(tmp_path, database_url, *options)
    made.all.pop()
    with closing(made):
        made.start()
        equal = doctor(made.all[1], database_url, *options)["bucket"]
        without = doctor(made.all[1], database_url)["bucket"]
    assert equal == [f"ok {place} (--bucket) can be written and read"]
    other = made.all[0].url
    assert without == [f"error {other} has others than this controller, which won't start"]


def test_the_doctor_finds_what_is_wrong_with_the_others(
    two: Controllers, database_url: str
) -> None:
    first, second = two.all
    found = doctor(second, database_url)
    assert found["leader"] == [f"ok {first.url} leads and has its lock"]
    assert found["keys"] == ["ok they are there, and equal on 2 controllers"]
    assert found["others"] == ["ok 2 controllers are up"]
    assert found["port"] == [f"ok a controller listens on {second.url.removeprefix('http://')}"]
    assert sorted(one.split()[0] for one in found["address"]) == ["ok", "ok"]
    assert found["database"][0].startswith(("ok PostgreSQL", "warning PostgreSQL"))

    second.kill9()
    (second.data / "secrets.key").write_text("another")
    found = doctor(second, database_url)
    assert found["keys"] == [f"error they are not those of {first.url}"]
    assert (
        f"error {second.url} (--url) does not answer from here: Connection refused"
        in (found["address"])
    )
    first.kill9()

    def nobody_leads() -> bool:
        return doctor(second, database_url)["leader"][0].startswith("error nobody leads")

    wait_until(nobody_leads, what="the lease to run out")


def test_a_database_that_is_away_is_an_answer(tmp_path: Path) -> None:
    url = f"postgresql://nobody@/none?host={tmp_path}"
    asked = run_cli("controller", "upgrade-check", "--data", tmp_path, "--database", url)
    assert asked.status == 1
    assert "error    database  it cannot be used" in asked.output


class Newer:
    """The next version's controller in the place of one of this version."""

    def __init__(self, folder: Path, instead_of: ControllerProcess, database: str) -> None:
        self._fairlead = newer_programs(folder / "newer") / "fairlead"
        self._data = instead_of.data
        self._database = database
        self._replaced = instead_of

    def check(self) -> Any:
        argv: list[str | Path] = [self._fairlead, "controller", "upgrade-check", "--json"]
        done = subprocess.run(
            [*argv, "--data", self._data, "--database", self._database],
            capture_output=True,
            env=os.environ,
            check=False,
        )
        return done.returncode, msgspec.json.decode(done.stdout)["findings"]

    def take_its_place(self) -> None:
        self._replaced.daemon.argv[0] = str(self._fairlead)
        self._replaced.start()


def test_a_rolling_upgrade_keeps_what_was_accepted(
    two: Controllers, database_url: str, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    first, second = two.all
    made = two.submit(second, "before")
    newer = Newer(tmp_path, second, database_url)
    status, found = newer.check()
    told = " ".join(one["message"] for one in found)
    assert status == 0
    assert f"{NEWER} can wait next to 0.1.0, and takes over from it" in told
    assert f"this version makes it {NEWER_SCHEMA} when it leads" in told
    assert f"{second.url} wait with the earlier version" in told
    assert f"stop {first.url} last" in told

    assert second.stop() == 0
    newer.take_its_place()
    assert two.submit(second, "during") != made
    assert two.seen_by(first)[second.url] == "waits"
    assert first.stop() == 0
    assert two.leader(second) is second
    assert two.submit(second, "before") == made
    assert schema_of(postgresql, database_url) == NEWER_SCHEMA

    first.start()
    assert two.submit(first, "before") == made, "the earlier version still passes requests on"
    asked = run_cli("controller", "upgrade-check", "--data", first.data, "--database", database_url)
    assert asked.status == 1
    assert f"it is {NEWER_SCHEMA}; this version knows" in asked.output
    second.kill9()
    assert first.daemon.wait() == 1, "it never changes what it does not know"
    assert f"the database has schema '{NEWER_SCHEMA}'" in first.daemon.tail()
    assert "use the newer version" in first.daemon.tail()
    second.start()
    assert two.submit(second, "before") == made


def schema_of(postgresql: PostgresqlServer, url: str) -> str:
    name = url.rpartition("/")[0].rpartition("@/")[2].partition("?")[0]
    return str(postgresql.sql(name, "SELECT version_num FROM alembic_version")).strip()
