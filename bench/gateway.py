"""What a gateway costs a service, beside plain Caddy: `./dev bench gateway`.

The same app behind Caddy alone; behind HAProxy, OpenSSH's client, a real sshd, an exposed socket
and the relay of a runner; and behind HAProxy and the HAProxy of a node (the direct way). Each is a
process of its own on one machine. Clients use plain HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import grp
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import psutil
import uvloop

from bench import report
from bench.parts import unwind_on_sigterm
from bench.services import ANSWER, Load, answers, ask_load, program
from fairlead.wire.gateway import (
    Certificate,
    GatewayNode,
    GatewayReplica,
    GatewayService,
    Snapshot,
)
from fairlead.wire.shim import TaskInfo, TaskStatus, TaskTimes
from gateway import agent
from gateway.haproxy import Ports
from gateway.state import AgentState
from shim.access.direct_way import DirectWays
from shim.access.exposed_ports import ExposedPorts, ExposureRecord
from shim.daemon import disk_threads
from shim.settings import DirectAccess, GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords
from tests.support.daemons import Daemon
from tests.support.gateway import haproxy_daemon, listens
from tests.support.ssh_daemon import GATEWAY_USER, SshDaemon, free_port
from tests.support.waiting import wait_until

HOST = "api.bench.test"
DIRECT_HOST = "direct.bench.test"
ROUNDS = 7
"""All take turns, since other work on the machine comes and goes; medians are shown."""


class Place(msgspec.Struct, frozen=True):
    folder: str
    app: int
    http: int
    plain: int
    direct: int

    @property
    def direct_access(self) -> DirectAccess:
        return DirectAccess(folder=self.path / "direct", port=self.direct, addresses=("127.0.0.1",))

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def ways(self) -> dict[str, tuple[int, str]]:
        """The port and host by which each way is asked for the app."""
        return {
            "app": (self.app, HOST),
            "plain": (self.plain, HOST),
            "gateway": (self.http, HOST),
            "direct": (self.http, DIRECT_HOST),
        }

    @property
    def sockets(self) -> Path:
        """The file with the sockets of the exposed ports by task, once all are exposed."""
        return self.path / "sockets.json"


async def _expose(place: Place) -> None:
    """Expose the port for two tasks: `t` through SSH alone, `d` directly."""
    tasks = {id: _task(place, id) for id in ("t", "d")}
    threads = disk_threads()
    access = GatewayAccess(folder=place.path / "exposed", gid=grp.getgrnam(GATEWAY_USER).gr_gid)
    records = DiskRecords(place.path / "records", ExposureRecord, threads)
    direct = DirectWays(
        place.direct_access,
        place.path / "direct.pem",
        tasks.get,
        lambda info: "127.0.0.1" if info.id == "d" else None,
        threads,
    )
    ports = ExposedPorts(access, records, tasks.get, threads, direct=direct)
    await ports.open(EventLog(epoch="e"))
    sockets = {id: (await ports.expose(info, place.app)).socket for id, info in tasks.items()}
    # Its reader waits until it is there, and must not find half of it.
    written = place.sockets.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(sockets))
    written.rename(place.sockets)
    await asyncio.Event().wait()


def _task(place: Place, id: str) -> TaskInfo:
    return TaskInfo(
        id=id,
        run_id="r",
        run_name="r",
        allocation_id="a",
        status=TaskStatus.RUNNING,
        image="i",
        incarnation=0,
        runner_socket=str(place.path / "runner.sock"),
        times=TaskTimes(submitted_at=0.0),
    )


def _options(place: Place) -> agent.Options:
    return agent.Options(
        data=place.path / "state",
        socket=place.path / "agent.sock",
        traffic=place.path / "traffic.sock",
        caddy_admin=place.path / "admin.sock",
        haproxy=place.path / "haproxy",
    )


def _snapshot(place: Place, sshd: SshDaemon) -> Snapshot:
    sockets = msgspec.json.decode(place.sockets.read_bytes(), type=dict[str, str])
    services = tuple(
        GatewayService(
            run_id=id,
            name=host.partition(".")[0],
            owner="o",
            host=host,
            auth=False,
            replicas=(GatewayReplica(id=id, group="main", node_id="n", socket=sockets[id]),),
        )
        for id, host in (("t", HOST), ("d", DIRECT_HOST))
    )
    node = GatewayNode(id="n", host="127.0.0.1", port=sshd.port, host_key=sshd.host_key)
    return Snapshot(
        version=1,
        gateway="main",
        domain="bench.test",
        certificate=Certificate(kind="none"),
        nodes=(node,),
        services=services,
    )


def _caddy(folder: Path, config: object, name: str) -> Daemon:
    home = folder / name
    home.mkdir()
    (home / "caddy.json").write_text(json.dumps(config))
    places = {"HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    found = shutil.which("caddy") or "/usr/bin/caddy"
    command: list[str | Path] = [found, "run", "--config", home / "caddy.json"]
    daemon = Daemon(command, home / "caddy.log", env=places)
    daemon.spawn()
    return daemon


def _plain(place: Place) -> dict[str, object]:
    proxy = {"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{place.app}"}]}
    server = {
        "listen": [f":{place.plain}"],
        "routes": [{"handle": [proxy]}],
        "automatic_https": {"disable": True},
    }
    return {"admin": {"disabled": True}, "apps": {"http": {"servers": {"plain": server}}}}


@contextlib.contextmanager
def bed() -> Iterator[tuple[Place, psutil.Process]]:
    """Give the place, and the agent's process, once each way to the app carries requests."""
    # Short, whatever $TMPDIR says: the path of a unix socket has at most 107 bytes (unix(7)).
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    # sshd opens the sockets in it as another user, and mkdtemp makes it 0700.
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        place = Place(
            str(folder), **{name: free_port() for name in ("app", "http", "plain", "direct")}
        )
        (folder / "ssh").mkdir()
        sshd = SshDaemon(folder / "ssh")
        state = AgentState(folder / "state")
        public = state.identity().export_public_key().decode()
        sshd.gateway_keys.write_text(f"restrict,port-forwarding {public}")
        sshd.start()
        stack.callback(sshd.stop)
        described = folder / "place.json"
        described.write_bytes(msgspec.json.encode(place))
        runner = folder / "runner.sock"
        task = ("--task", str(folder / "task"), "--socket", str(runner), "--peers", "any")
        stack.enter_context(program("entrypoint.main", *task))
        wait_until(runner.exists)
        stack.enter_context(program("bench.services", "--app", str(place.app)))
        stack.enter_context(program("bench.gateway", "--expose", str(described)))
        wait_until(place.sockets.exists)
        state.keep(_snapshot(place, sshd))
        of_node = place.direct_access
        at_node = Daemon(["/usr/sbin/haproxy", "-f", of_node.configuration], folder / "node.log")
        at_node.spawn()
        stack.callback(at_node.kill9)
        wait_until(partial(listens, of_node.admin))
        stack.callback(_caddy(folder, _plain(place), "plain").kill9)
        balancer = haproxy_daemon(_options(place).paths, Ports(http=place.http, https=free_port()))
        balancer.spawn()
        stack.callback(balancer.kill9)
        wait_until((folder / "haproxy/admin.sock").exists)
        serving = stack.enter_context(program("bench.gateway", "--agent", str(described)))
        for port in (place.app, place.plain):
            wait_until(partial(answers, port))
        wait_until(partial(_are_fast, place))
        yield place, serving


def _are_fast(place: Place) -> bool:
    """Return whether HAProxy sends the requests of both services straight to their replicas, and to
    one of them directly."""
    ways, names = (_map(place, name) for name in ("slots", "names"))
    return HOST in ways and DIRECT_HOST in ways and "fairlead.internal" in names


def _map(place: Place, name: str) -> str:
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(str(place.path / "haproxy/admin.sock"))
        admin.sendall(f"show map {place.path / 'haproxy'}/{name}.map\n".encode())
        return admin.recv(1 << 16).decode()


async def _measure(place: Place, serving: psutil.Process, seconds: float) -> None:
    print("| | app alone | plain Caddy | gateway | directly | |\n|---|---:|---:|---:|---:|---|")
    asked = place.ways
    for connections in (1, 32):
        rounds: dict[str, list[Load]] = {name: [] for name in asked}
        cpu = 0.0
        for _ in range(ROUNDS):
            for name, (port, host) in asked.items():
                # User and system time; psutil adds that of children after them, such as ssh.
                before = sum(serving.cpu_times()[:2])
                load = await ask_load(port, "/", connections, seconds / ROUNDS, host)
                rounds[name].append(load)
                cpu += sum(serving.cpu_times()[:2]) - before if name == "gateway" else 0.0
        carried = sum(load.per_second for load in rounds["gateway"]) * seconds / ROUNDS
        loads = {name: _median(found) for name, found in rounds.items()}
        plain = loads["plain"]
        cells = " | ".join(f"{load.per_second:.0f}" for load in loads.values())
        shares = (loads[name].per_second / plain.per_second for name in ("gateway", "direct"))
        print(
            f"| {len(ANSWER)} bytes, {connections} connections: requests/s | {cells} "
            f"| {' and '.join(f'{share:.2f}' for share in shares)} of plain Caddy, "
            f"{carried / cpu:.0f} for each second of the agent's CPU |"
        )
        times = " | ".join(_times(load) for load in loads.values())
        more = (loads[name].p50 - plain.p50 for name in ("gateway", "direct"))
        print(f"| … p50 (p99) | {times} | {' and '.join(f'{one * 1e3:+.2f}' for one in more)} ms |")


def _median(rounds: list[Load]) -> Load:
    return sorted(rounds, key=lambda load: load.per_second)[len(rounds) // 2]


def _times(load: Load) -> str:
    return f"{load.p50 * 1e3:.2f} ({load.p99 * 1e3:.2f}) ms"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench gateway", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=14.0, metavar="N", help="of load (default: %(default)s)")
    add("--expose", type=Path, help=argparse.SUPPRESS)
    add("--agent", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    described = given.expose or given.agent
    if described is not None:
        place = msgspec.json.decode(described.read_bytes(), type=Place)
        if given.expose:
            uvloop.run(_expose(place))
        else:
            uvloop.run(agent.serve(_options(place), lambda: None))
        return
    if os.geteuid() != 0:
        raise SystemExit("bench: it starts its own sshd: run it as root")
    unwind_on_sigterm()
    print(f"`./dev bench gateway` ({report.machine()}):\n")
    with bed() as (place, serving):
        uvloop.run(_measure(place, serving, given.seconds))


if __name__ == "__main__":
    main()
