"""Rented machines: what is ordered comes once, while the controller is killed with -9.

A controller rents at moto, behind a front that has EC2's client tokens and loses some answers. The
machines are records of moto, with addresses of this machine, and never boot. First the order of
many is timed, and at a provider whose machines are shims of this machine the way from a node that
is ready to the first line of its job. Then the controller is killed again and again while jobs come
and go. At the end each record had one machine, and once the fleet rents no more, none is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import botocore.session

from bench.proofs._table import conclude
from controller.clouds.aws.cloud import VISIBLE_AFTER_SECONDS
from controller.machines.calls import START_SECONDS
from fairlead import Client
from fairlead.errors import ApiError, ConnectionLost
from fairlead.rest import ControllerClient
from tests.support.daemons import end_processes_that_mention
from tests.support.ec2_account import front_in_thread, moto_server
from tests.support.ec2_front import Ec2Front, Failure
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

_REGION = "eu-central-1"
_KEYS = {"AWS_ACCESS_KEY_ID": "fairlead-bench", "AWS_SECRET_ACCESS_KEY": "none"}
_TYPES = ["g6.xlarge", "g5.xlarge"]
_FLEET = """\
type: fleet
name: burst
machines: {machines}
"""
_RENTS = "{{provider: aws, nodes: 0..{most}, instance_types: [g6.xlarge, g5.xlarge], spot: never}}"
_JOB = {
    "type": "task",
    "image": "busybox",
    "commands": ["true"],
    "resources": {"cpu": 4},
    "fleets": ["burst"],
}
_NEAR = """\
type: fleet
name: near
machines: {machines}
"""
_RENTS_NEAR = "{provider: near, nodes: 0..8, instance_types: [small]}"
_SAYS = {
    "type": "task",
    "commands": ["echo here", "sleep 600"],
    "resources": {"cpu": 1, "memory": "64MB"},
    "fleets": ["near"],
}
_FIRST_LINES = 8
"""The program has no more machines."""
_PROGRAM = CHECKOUT / "examples/machines/processes.py"
_PATIENCE = 300.0
_LIVE = ("pending", "running")


class Account:
    """moto, and the front before it."""

    def __init__(self, url: str, front: Ec2Front) -> None:
        self.front = front
        self.ec2: Any = botocore.session.Session().create_client(
            "ec2", region_name=_REGION, endpoint_url=url
        )

    def provider(self) -> dict[str, Any]:
        image = self.ec2.register_image(Name="fairlead", RootDeviceName="/dev/sda1")["ImageId"]
        subnet = self.ec2.describe_subnets()["Subnets"][0]
        group = self.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        region = {
            "image": image,
            "subnets": {subnet["AvailabilityZone"]: subnet["SubnetId"]},
            "security_groups": [group],
        }
        prices = dict.fromkeys(_TYPES, 1.0) | {"g5.xlarge": 1.1}
        return {
            "type": "aws",
            "regions": {_REGION: region},
            "endpoint": self.front.url,
            "prices": prices,
        }

    def lose(self, instance: str) -> None:
        """End a machine as its provider does; the front must know, since moto ends none twice."""
        session = botocore.session.Session()
        ec2 = session.create_client("ec2", region_name=_REGION, endpoint_url=self.front.url)
        ec2.terminate_instances(InstanceIds=[instance])
        ec2.close()

    def machines(self, *states: str) -> Counter[str]:
        """Count the machines in these states by the record that their tag names."""
        pages = self.ec2.get_paginator("describe_instances").paginate()
        every = (
            one for page in pages for each in page["Reservations"] for one in each["Instances"]
        )
        return Counter(
            next(tag["Value"] for tag in one["Tags"] if tag["Key"] == "fairlead-machine")
            for one in every
            if not states or one["State"]["Name"] in states
        )

    def made(self) -> int:
        return sum(action == "RunInstances" and status == 200 for _, action, status in self.times)

    @property
    def times(self) -> list[tuple[float, str, int]]:
        return list(self.front.times)


@contextmanager
def _account(folder: Path) -> Iterator[Account]:
    with moto_server(folder) as url, front_in_thread(url) as front:
        # The controller asks which account it uses; it must ask this one.
        os.environ["AWS_ENDPOINT_URL_STS"] = url
        yield Account(url, front)


class Controller:
    def __init__(self, folder: Path, account: Account) -> None:
        config = folder / "controller.json"
        shim = Path(sys.executable).parent / "fairlead-shim"
        program = [sys.executable, str(_PROGRAM), "--folder", str(folder / "near")]
        command = [*program, "--shim", str(shim)]
        near = {"type": "exec", "command": command, "idempotent": True}
        config.write_text(json.dumps({"providers": {"aws": account.provider(), "near": near}}))
        self._folder = folder
        self.process = ControllerProcess(folder / "c", "--config", config, outlasts_tests=True)
        self.started_at = time.monotonic()
        self.process.start()
        self._count = 0

    def rent(self, machines: str) -> None:
        """Have the fleet rent by these fields, or `off`."""
        self.apply(_FLEET.format(machines=machines))

    def apply(self, fleet: str) -> None:
        file = self._folder / "fleet.yaml"
        file.write_text(fleet)
        self.process.cli("apply", "-f", file).succeeded()

    def submit(self, count: int) -> None:
        client = ControllerClient(self.process.url, self.process.token)
        for _ in range(count):
            self._count += 1
            body = {
                "configuration": _JOB,
                "name": f"j-{self._count}",
                "client_key": f"k{self._count}",
            }
            self._ask(lambda body=body: client.submit(body))

    def stop(self, number: int) -> None:
        client = ControllerClient(self.process.url, self.process.token)
        self._ask(lambda: client.post(f"/v1/runs/j-{number}/stop", {"abort": True}))

    @staticmethod
    def _ask(call: Any) -> None:
        """Ask until there is an answer: a controller that was killed is away for a moment."""
        for _ in range(200):
            try:
                call()
                return
            except (ConnectionLost, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in (404, 409, 503):
                    raise
                time.sleep(0.1)

    def machines(self, fleet: str = "burst") -> list[dict[str, Any]]:
        listed = self.process.cli("machine", "list", "--all", "--json").succeeded().json
        found: list[dict[str, Any]] = listed["machines"]
        return [one for one in found if one["fleet"] == fleet]

    def orphans(self) -> int:
        return len(self.process.cli("machine", "orphans", "--json").succeeded().json["orphans"])


def _order(controller: Controller, account: Account, count: int) -> list[tuple[str, object]]:
    """Time the order of many machines at once, and what is asked meanwhile."""
    load = os.getloadavg()[0]
    began = time.monotonic()
    controller.submit(count)
    submitted = time.monotonic()
    wait_until(lambda: account.made() >= count, _PATIENCE, "the machines to be made")
    ended = max(at for at, action, _ in account.times if action == "RunInstances")
    asked = sum(
        action == "DescribeInstances" and began <= at <= ended for at, action, _ in account.times
    )
    return [
        (f"{count} jobs submitted, one by one (load {load:.0f})", f"{submitted - began:.1f} s"),
        (f"… the last of {count} machines made, from the first job", f"{ended - began:.1f} s"),
        ("… lists of the region meanwhile (DescribeInstances)", asked),
    ]


def _next_offer(controller: Controller, account: Account) -> tuple[str, object]:
    """Time from the refusal of one offer to the request for the next."""
    refusals = [Failure("InsufficientInstanceCapacity")]
    account.front.fails["RunInstances"] = refusals
    before = account.made()
    controller.submit(1)
    wait_until(lambda: not refusals and account.made() > before, _PATIENCE, "another offer")
    refused = max(
        at for at, action, status in account.times if (action, status) == ("RunInstances", 400)
    )
    made = min(
        at
        for at, action, status in account.times
        if (action, status) == ("RunInstances", 200) and at > refused
    )
    return "a refused offer → a machine of the next one", f"{made - refused:.2f} s"


def _vanished(controller: Controller, account: Account) -> tuple[str, object]:
    """Time until a machine that the provider lost is noticed."""
    # A controller that has just started makes lists more often.
    wait_until(
        lambda: time.monotonic() - controller.started_at > START_SECONDS,
        _PATIENCE,
        "the controller to be past its start",
    )
    live = [one for one in controller.machines() if one["status"] == "provisioning"]
    instance = live[0]["instance_id"].rpartition("/")[2]
    ordered_at = datetime.fromisoformat(live[0]["ordered_at"]).timestamp()
    # Before that, its absence from a list tells nothing.
    wait_until(
        lambda: time.time() - ordered_at > VISIBLE_AFTER_SECONDS, _PATIENCE, "lists to have it"
    )
    account.lose(instance)
    began = time.monotonic()

    def is_noticed() -> bool:
        found = next(one for one in controller.machines() if one["id"] == live[0]["id"])
        return not _is_live(found)

    wait_until(is_noticed, _PATIENCE, "the lost machine to be noticed")
    return "a vanished machine is noticed after", f"{time.monotonic() - began:.0f} s"


def _first_lines(controller: Controller) -> tuple[str, object]:
    """Time from the commit that a machine is a node to the first line of the job that waited for
    it, as a client sees it."""
    controller.apply(_NEAR.format(machines=_RENTS_NEAR))
    waits: list[float] = []
    names: list[str] = []
    known: set[str] = set()
    load = os.getloadavg()[0]
    with Client(controller.process.url, controller.process.token) as client:
        # Each goes on, so that a later one needs a machine of its own. A shim has all cores of this
        # host, so more than one may go onto it: those did not wait for a node.
        while len(waits) < _FIRST_LINES:
            names.append(f"says-{len(names)}")
            run = client.submit({**_SAYS, "name": names[-1]})
            next(iter(run.logs(follow=True)))
            seen_at = time.time()
            machines = {one["id"]: one for one in controller.machines("near")}
            waits += [seen_at - _joined_at(machines[one]) for one in machines.keys() - known]
            known |= machines.keys()
        for name in names:
            client.run(name).stop(abort=True)
    controller.apply(_NEAR.format(machines="off"))
    wait_until(
        lambda: all(one["status"] == "terminated" for one in controller.machines("near")),
        _PATIENCE,
        "the near machines to end",
    )
    what = f"a node is ready → the first line of its job, median (load {load:.0f})"
    return what, f"{statistics.median(waits):.2f} s, at most {max(waits):.2f} s of {len(waits)}"


def _joined_at(record: dict[str, Any]) -> float:
    if record["joined_at"] is None:
        return 0.0
    return datetime.fromisoformat(record["joined_at"]).timestamp()


def _kill(controller: Controller, account: Account, kills: int, chance: random.Random) -> None:
    """Kill the controller while it orders and ends machines."""
    for number in range(kills):
        account.front.loses += ["RunInstances"] * chance.choice((0, 1, 3))
        controller.submit(chance.randint(1, 6))
        controller.stop(chance.randint(1, controller._count))
        time.sleep(chance.uniform(0.0, 1.5))
        controller.process.kill9()
        controller.process.start()
        print(
            f"kill {number + 1}: {account.made()} requests for a machine were granted", flush=True
        )


def _judge(controller: Controller, account: Account) -> tuple[list[tuple[str, object]], list[str]]:
    """Compare the records with what the account has, then end all of it and compare both again."""
    asked = {one["id"] for one in controller.machines() if _has_no_answer(one)}
    wait_until(
        lambda: (
            not any(one["id"] in asked and _has_no_answer(one) for one in controller.machines())
        ),
        _PATIENCE,
        "every order to have an answer",
    )
    # Machines come and go meanwhile, as at the end of their `boot_limit`: a record is compared with
    # the account only where it says the same before and after the account is read.
    before = controller.machines()
    live = account.machines(*_LIVE)
    broken = without_machine(before, live, controller.machines())
    controller.rent("off")
    wait_until(lambda: not account.machines(*_LIVE), _PATIENCE, "all machines to end")
    wait_until(
        lambda: all(one["status"] == "terminated" for one in controller.machines()),
        _PATIENCE,
        "all records to end",
    )
    # moto tells of ended machines, too, so this finds each one that was ever made.
    records, made = controller.machines(), account.machines()
    broken += [f"record {one} had {count} machines" for one, count in made.items() if count > 1]
    broken += [
        f"machine of {one} has no record" for one in made.keys() - {r["id"] for r in records}
    ]
    if orphans := controller.orphans():
        broken.append(f"{orphans} orphans")
    rows: list[tuple[str, object]] = [
        ("records that were compared while they had a machine", sum(map(_is_booting, before))),
        ("records of machines", len(records)),
        ("machines that were made", made.total()),
        ("of one record more than one", sum(count > 1 for count in made.values())),
        ("orphans, and machines left", orphans + account.machines(*_LIVE).total()),
    ]
    return rows, broken


def without_machine(
    before: Iterable[Mapping[str, Any]],
    live: Container[str],
    after: Iterable[Mapping[str, Any]],
) -> list[str]:
    """Return which records have no machine, though they had one before and after `live` was read:
    it holds the records that have one."""
    still = {one["id"] for one in after if _is_booting(one)}
    known = [one["id"] for one in before if _is_booting(one) and one["id"] in still]
    return [f"record {one} has no machine" for one in known if one not in live]


def _is_booting(record: Mapping[str, Any]) -> bool:
    """Return whether the record's machine was made, and nobody has asked for its end."""
    return _is_live(record) and record["instance_id"] is not None


def _has_no_answer(record: Mapping[str, Any]) -> bool:
    return _is_live(record) and record["instance_id"] is None


def _is_live(record: Mapping[str, Any]) -> bool:
    return bool(record["status"] == "provisioning")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove machines", description=__doc__)
    parser.add_argument("--machines", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    given = parser.parse_args()
    os.environ.update(_KEYS)
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    rows: list[tuple[str, object]] = []
    try:
        with ExitStack() as stack:
            account = stack.enter_context(_account(folder))
            controller = Controller(folder, account)
            stack.callback(end_processes_that_mention, f"{folder / 'near'}/")
            stack.callback(controller.process.close)
            controller.rent(_RENTS.format(most=given.machines + 20 * given.kills))
            rows += _order(controller, account, given.machines)
            rows.append(_next_offer(controller, account))
            rows.append(_vanished(controller, account))
            rows.append(_first_lines(controller))
            _kill(controller, account, given.kills, random.Random(given.seed))
            judged, broken = _judge(controller, account)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conclude(f"machines, {given.kills} kills", [*rows, *judged], broken)


if __name__ == "__main__":
    main()
