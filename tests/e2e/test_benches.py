"""The beds of the benches: each starts, and what it measures is there."""

from __future__ import annotations

import http.client
import subprocess
import sys
from contextlib import closing

import pytest

from bench import gateway, services
from bench.parts import running_parts
from bench.starts import WORDS, of_api
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e


def _get(port: int, path: str, host: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as connection:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_bench_of_gateways_reaches_its_app_by_each_way() -> None:
    with gateway.bed() as (place, _):
        answers = {name: _get(port, "/", host) for name, (port, host) in place.ways.items()}
    assert answers == dict.fromkeys(("app", "plain", "gateway", "direct"), (200, services.ANSWER))


def test_the_bench_of_services_reaches_its_app_through_the_proxy() -> None:
    with services.bed() as (place, _):
        answer = _get(place.listen, f"{services.PATH}/", "bench")
    assert answer == (200, services.ANSWER)


def test_the_bench_of_starts_gets_the_first_line_through_docker() -> None:
    with running_parts() as parts:
        task = parts.write_task("start", ["/bin/busybox", "echo", WORDS])
        assert of_api(parts, task, "start") > 0


@pytest.mark.parametrize(
    "bench",
    [
        ("runner_logs", "1"),
        ("runner_start", "1"),
        ("scale", "--nodes", "2", "--only", "submit"),
        ("submissions", "--runs", "250"),
        ("leads", "--leads", "1", "--runs", "1"),
    ],
    ids=lambda bench: bench[0],
)
def test_the_smallest_run_of_the_bench_ends_well(bench: tuple[str, ...]) -> None:
    name, *options = bench
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *options],
        cwd=CHECKOUT,
        capture_output=True,
        timeout=LONG,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout
