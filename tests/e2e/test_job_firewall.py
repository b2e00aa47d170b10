"""What jobs do not reach by default: the metadata service of a cloud, and their node's own sshd.

A node is a network namespace with its own dockerd; another namespace behind it is the cloud.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from shim.engines.docker.request import cgroup_parent
from shim.wires.rules import BRIDGES, Names, bridges
from tests.support import images
from tests.support.daemons import Daemon, DaemonFailed, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

METADATA, METADATA6 = "169.254.169.254", "fd00:ec2::254"
NODE = "10.99.0.1"
_CGROUP2 = (
    "mount --make-rprivate / && umount -R -l /sys/fs/cgroup && "
    "mount -t cgroup2 none /sys/fs/cgroup && "
    'mkdir -p /sys/fs/cgroup/fairlead /sys/fs/cgroup/fairlead.slice && exec "$@"'
)
_SERVER = """
import socket, sys, threading

def serve(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"hello")
        connection.close()

for port in map(int, sys.argv[2:]):
    family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    listener = socket.create_server((sys.argv[1], port), family=family)
    threading.Thread(target=serve, args=(listener,)).start()
"""


_HEAR = """
import socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("", 5000))
    any_device = struct.pack("4s4s", socket.inet_aton("239.1.1.1"), bytes(4))
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, any_device)
    print("listening", flush=True)
    heard = set()
    while len(heard) < 4:
        heard.add(s.recv(100).decode())
"""
_SAY = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    while True:
        for to in sys.argv[1:]:
            s.sendto(to.encode(), (to, 5000))
        time.sleep(0.05)
"""


class Node:
    """A job's questions take its options of `docker run`."""

    def __init__(self, namespace: str, dockerd: DockerDaemon, folder: Path) -> None:
        self.dockerd = dockerd
        self._enter = [
            "nsenter",
            f"--net=/run/netns/{namespace}",
            f"--mount=/proc/{dockerd.pid}/ns/mnt",
        ]
        self._rules = folder / "firewall.nft"
        self._folder = folder / "firewall.d"
        self._folder.mkdir()
        rules = (CHECKOUT / "packer/firewall.nft").read_text()
        for user in ("fairlead-gateway", "fairlead"):
            rules = rules.replace(f'= "{user}"\n', '= "daemon"\n')
        self._rules.write_text(rules.replace("/etc/fairlead/firewall.d", str(self._folder)))

    def run(self, *command: str | Path) -> str:
        return run([*self._enter, *command])

    def load(self, changes: str = "") -> None:
        """As the unit does, with an operator's changes."""
        (self._folder / "mine.nft").write_text(changes)
        self.run("nft", "-f", self._rules)
        self.run("nft", "-f", CHECKOUT / "packer/firewall-jobs.nft")

    def unload(self) -> None:
        self.run("nft", "delete", "table", "inet", "fairlead")

    def asks(self, address: str, port: int) -> bool:
        """Whether the node's own software gets an answer."""
        return self.run("sh", "-c", f"busybox {_ask(address, port, LONG)}").strip() == "hello"

    def job_reaches(self, address: str, port: int, *options: str) -> bool:
        return self._job_asks(_ask(address, port, LONG), *options).endswith("hello")

    def job_is_kept_from(self, address: str, port: int, *options: str) -> bool:
        # What nc says of a refusal may come after it.
        return "nothing" in self._job_asks(_ask(address, port, 2), *options)

    def _job_asks(self, ask: str, *options: str) -> str:
        return self.dockerd.docker("run", "--rm", *options, "busybox", "/bin/sh", "-c", ask)


def _ask(address: str, port: int, seconds: float) -> str:
    return f"nc -w {seconds:g} {address} {port} </dev/null || echo nothing"


@pytest.fixture(scope="module")
def node(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[Node]:
    name = f"fl-e2e-{os.getpid()}-{next(numbers)}"
    cloud = f"{name}c"
    folder = testbed_folder / "firewall-of-jobs"
    folder.mkdir()
    for namespace in (name, cloud):
        run(["ip", "netns", "add", namespace])
        run(["ip", "-n", namespace, "link", "set", "lo", "up"])
    run(["ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", cloud])
    run(["ip", "-n", cloud, "address", "add", f"{METADATA}/32", "dev", "lo"])
    run(["ip", "-n", cloud, "address", "add", f"{METADATA6}/128", "dev", "lo", "nodad"])
    for namespace, address in ((name, "2001:db8:99::1"), (cloud, "2001:db8:99::2")):
        words = ["ip", "-n", namespace, "address", "add", f"{address}/64", "dev", "eth0", "nodad"]
        run(words)
    for namespace, address in ((name, NODE), (cloud, "10.99.0.2")):
        run(["ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0"])
        run(["ip", "-n", namespace, "link", "set", "eth0", "up"])
    run(["ip", "-n", name, "route", "add", "default", "via", "10.99.0.2"])
    run(["ip", "-n", name, "route", "add", "default", "via", "2001:db8:99::2"])
    within = ("unshare", "--mount", "sh", "-ec", _CGROUP2, "sh")
    dockerd = DockerDaemon(folder, netns=name, within=within)
    servers = [
        _serving(cloud, folder / "metadata.log", METADATA, 80, 53),
        _serving(cloud, folder / "metadata6.log", METADATA6, 80, 53),
        _serving(name, folder / "node.log", NODE, 22, 2222, 8080),
    ]
    dockerd.start()
    dockerd.import_image("busybox:latest", images.busybox_root(folder / "busybox"))
    bridge = f"com.docker.network.bridge.name={BRIDGES}0123456789ab"
    dockerd.docker("network", "create", "-o", bridge, "of-a-run")
    made = Node(name, dockerd, folder)
    wait_until(lambda: made.asks(METADATA, 80) and made.asks(NODE, 22), what="the servers")
    yield made
    dockerd.docker("network", "rm", "of-a-run")
    dockerd.stop()
    for server in servers:
        server.stop()
    for namespace in (name, cloud):
        run(["ip", "netns", "delete", namespace])


def _serving(namespace: str, log: Path, address: str, *ports: int) -> Daemon:
    words = [sys.executable, "-c", _SERVER, address, *map(str, ports)]
    server = Daemon(["nsenter", f"--net=/run/netns/{namespace}", *words], log, outlasts_tests=True)
    server.spawn()
    return server


@pytest.fixture
def in_its_network(node: Node) -> list[str]:
    """A job's options by which the shim puts it into the node's network."""
    info = json.loads(node.dockerd.docker("info", "--format", "{{json .}}"))
    parent = cgroup_parent(info)
    assert parent == "/fairlead"
    return ["--network", "host", "--cgroup-parent", parent]


@pytest.fixture
def closed(node: Node) -> Iterator[None]:
    node.load()
    yield
    node.unload()


def test_without_the_firewall_jobs_reach_everything(node: Node, in_its_network: list[str]) -> None:
    for options in (["--network", "of-a-run"], in_its_network):
        assert node.job_reaches(METADATA, 80, *options)
        assert node.job_reaches(NODE, 22, *options)
    assert node.job_reaches(METADATA6, 80, *in_its_network)


@pytest.mark.usefixtures("closed")
def test_no_job_reaches_a_metadata_service_and_the_nodes_own_software_does(
    node: Node, in_its_network: list[str]
) -> None:
    for options in (["--network", "of-a-run"], in_its_network):
        assert node.job_is_kept_from(METADATA, 80, *options)
        assert node.job_reaches(METADATA, 53, *options), "in some clouds it is the DNS server"
    # A run's network has no IPv6 here; wires have it (test_wire_hazards.py).
    assert node.job_is_kept_from(METADATA6, 80, *in_its_network)
    assert node.job_reaches(METADATA6, 53, *in_its_network)
    assert node.asks(METADATA, 80)
    assert node.asks(METADATA6, 80)


@pytest.mark.usefixtures("closed")
def test_a_job_in_its_runs_network_does_not_reach_its_nodes_sshd(
    node: Node, in_its_network: list[str]
) -> None:
    """In the node's network, where gangs are, the node's address is the job's own."""
    assert node.job_is_kept_from(NODE, 22, "--network", "of-a-run")
    assert node.job_reaches(NODE, 8080, "--network", "of-a-run")
    assert node.job_reaches(NODE, 22, *in_its_network)


def test_an_operator_may_open_them_and_name_another_port(
    node: Node, in_its_network: list[str]
) -> None:
    """As the guide says it."""
    guide = (CHECKOUT / "docs/nodes.md").read_text()
    opens = "flush chain inet fairlead metadata"
    closes = "add rule inet fairlead sshd tcp dport 2222 reject with tcp reset"
    assert opens in guide
    assert closes in guide
    node.load(f"{opens}\n{closes}\n")
    try:
        for options in (["--network", "of-a-run"], in_its_network):
            assert node.job_reaches(METADATA, 80, *options)
        assert node.job_is_kept_from(NODE, 2222, "--network", "of-a-run")
    finally:
        node.unload()


def test_without_cgroup_v2_the_rest_of_the_firewall_is_loaded(node: Node) -> None:
    node.load()
    try:
        node.run("rmdir", "/sys/fs/cgroup/fairlead.slice")
        with pytest.raises(DaemonFailed, match="cgroupv2 path fails"):
            node.load()
        assert node.job_is_kept_from(METADATA, 80, "--network", "of-a-run")
    finally:
        node.run("mkdir", "/sys/fs/cgroup/fairlead.slice")
        node.unload()


def test_runs_stay_apart_where_the_engines_own_rules_were_flushed(node: Node, closed: None) -> None:
    """As `iptables -F` or another engine does. The job's own run stays in reach."""
    bridge = f"com.docker.network.bridge.name={BRIDGES}ba9876543210"
    node.dockerd.docker("network", "create", "-o", bridge, "of-another")
    serve = "while :; do echo hello | nc -l -p 29500; done"
    options = ("--network", "of-a-run", "--name", "server")
    node.dockerd.docker("run", "-d", *options, "busybox", "/bin/sh", "-c", serve)
    look = '{{(index .NetworkSettings.Networks "of-a-run").IPAddress}}'
    address = node.dockerd.docker("inspect", "-f", look, "server")
    try:
        node.run("iptables", "-F")
        # Since 28, the engine drops there what comes to a container from elsewhere.
        node.run("iptables", "-t", "raw", "-F")
        node.run("iptables", "-P", "FORWARD", "ACCEPT")
        wait_until(lambda: node.job_reaches(address, 29500, "--network", "of-a-run"))
        assert node.job_is_kept_from(address, 29500, "--network", "of-another")
        node.unload()
        wait_until(lambda: node.job_reaches(address, 29500, "--network", "of-another"))
        node.load()
    finally:
        node.dockerd.docker("rm", "-f", "server")
        node.dockerd.docker("network", "rm", "of-another")


def test_tasks_of_a_run_hear_each_others_multicast(node: Node, closed: None) -> None:
    """With br_netfilter, as Docker loads it, the firewall sees what a bridge alone passes on."""
    node.run("sh", "-c", "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables")
    table = Names("i").bridges
    node.run("sh", "-c", f"nft -f - << 'end'\n{bridges(table)}end")
    pids = []
    for name in ("hears", "says"):
        options = ("--network", "of-a-run", "--name", name)
        node.dockerd.docker("run", "-d", *options, "busybox", "sleep", "1000")
        pids.append(node.dockerd.docker("inspect", "-f", "{{.State.Pid}}", name))
    try:
        look = "{{range .NetworkSettings.Networks}}{{.IPAddress}}/{{.IPPrefixLen}}{{end}}"
        own = IPv4Interface(node.dockerd.docker("inspect", "-f", look, "hears"))
        to = map(str, (own.ip, own.network.broadcast_address, "239.1.1.1", "255.255.255.255"))
        with _python_of(pids[0], _HEAR) as hears:
            assert hears.stdout is not None
            assert hears.stdout.readline() == "listening\n"
            with _python_of(pids[1], _SAY, *to):
                assert hears.wait(LONG) == 0
    finally:
        node.dockerd.docker("rm", "-f", "hears", "says")
        node.run("nft", "delete", "table", "inet", table)


@contextmanager
def _python_of(pid: str, script: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """Within this block a script runs in the network of a container, as one of its processes."""
    words = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", script, *argv]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
