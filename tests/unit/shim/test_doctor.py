"""The doctor's judgements: from what programs say to a sentence and a fix."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncssh
import docker.errors
import pytest

from common.core_pattern import FIX
from fairlead.wire.node import EngineKind, Finding, FindingLevel
from shim.engines.docker.examination import (
    NetworksOfNode,
    judge_crun,
    judge_engine,
    judge_networks,
    networks_of_shim,
)
from shim.errors import StartError
from shim.examination import Answer, Asked, NodeSetup, bad, ok
from shim.gpus.nvidia import examination
from shim.monitoring import doctor
from shim.settings import check_runtime
from tests.unit.shim.parts import listen

OK, WARNING, ERROR = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.ERROR
CONFINED = "".join(f"{name} {values[0]}\n" for name, values in doctor.TUNNEL.items())


def says(**programs: str | Answer) -> Asked:
    """Programs by name, with `_` for `-`; others are missing."""

    def asked(argv: Sequence[str]) -> Answer:
        answer = programs.get(argv[0].replace("-", "_"), Answer(127, "missing"))
        return answer if isinstance(answer, Answer) else Answer(0, answer)

    return asked


def levels(findings: Iterator[Finding]) -> list[FindingLevel]:
    return [each.level for each in findings]


@pytest.fixture
def node(tmp_path: Path) -> NodeSetup:
    keys = tmp_path / "etc/ssh/keys"
    keys.parent.mkdir(parents=True)
    keys.write_text("restrict ssh-ed25519 AAAA\n")
    return NodeSetup(data=tmp_path / "data", root=tmp_path, engine=EngineKind.PROCESS)


def sshd_says(settings: str) -> Asked:
    return says(sshd=f"{settings}authorizedkeysfile /etc/ssh/keys\n", getent="fairlead:*:1::::::")


def test_an_sshd_that_confines_the_tunnel_user_is_fine(node: NodeSetup) -> None:
    assert levels(doctor.sshd(node, sshd_says(CONFINED))) == [OK]


@pytest.mark.parametrize("setting", sorted(doctor.TUNNEL))
def test_each_setting_of_sshd_that_differs_is_named(node: NodeSetup, setting: str) -> None:
    changed = CONFINED.replace(f"{setting} ", f"{setting} not-")
    (finding,) = doctor.sshd(node, sshd_says(changed))
    assert (finding.level, setting in finding.message) == (ERROR, True)


def test_a_node_without_a_controllers_key_is_found(node: NodeSetup) -> None:
    (node.root / "etc/ssh/keys").write_text("")
    found = list(doctor.sshd(node, sshd_says(CONFINED)))
    assert [each.level for each in found] == [OK, ERROR]
    assert "--tunnel-key" in found[1].fix


def test_a_node_of_two_controllers_is_told_so(node: NodeSetup) -> None:
    keys = [asyncssh.generate_private_key("ssh-ed25519").export_public_key() for _ in range(2)]
    (node.root / "etc/ssh/keys").write_bytes(b"\n".join(keys))
    found = list(doctor.sshd(node, sshd_says(CONFINED)))
    assert [each.level for each in found] == [OK, WARNING]
    assert found[1].message.startswith("2 controllers may log in (SHA256:")


def test_a_locked_tunnel_user_is_found(node: NodeSetup) -> None:
    settings = f"{CONFINED}authorizedkeysfile /etc/ssh/keys\n"
    locked = says(sshd=settings, getent="fairlead:!:1::::::")
    assert levels(doctor.sshd(node, locked)) == [OK, ERROR]


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        (says(nft="table inet fairlead { meta skuid 999 reject }"), OK),
        (says(nft=Answer(1, "No such file or directory")), ERROR),
        (says(), ERROR),
        (says(nft=Answer(1, "Operation not permitted"), systemctl="active"), OK),
        (says(nft=Answer(1, "Operation not permitted"), systemctl=Answer(3, "failed")), ERROR),
    ],
)
def test_the_firewall_is_judged_by_its_rules_or_its_service(
    node: NodeSetup, asked: Asked, level: FindingLevel
) -> None:
    assert levels(doctor.firewall(node, asked)) == [level]


RULES = """table inet fairlead {
\tchain output {
\t\tmeta skuid 999 reject
%s\t}

\tchain metadata {
%s\t}

\tchain runs {
\t\tfib daddr . iif oif missing drop
\t}

\tchain sshd {
\t\ttcp dport 22 reject with tcp reset
\t}
}"""
BY_CGROUP = '\t\tsocket cgroupv2 level 1 "fairlead" jump metadata\n'
REFUSED = "\t\tip daddr 169.254.169.254 reject\n"


@pytest.mark.parametrize(
    ("rules", "port", "found"),
    [
        (RULES % (BY_CGROUP, REFUSED), 22, [(OK, "jobs reach no metadata service")]),
        (RULES % ("", REFUSED), 22, [(WARNING, "jobs in the node's network reach the metadata")]),
        (RULES % (BY_CGROUP, ""), 22, [(OK, "the operator has opened the metadata service")]),
        ("table inet fairlead { skuid }", 22, [(WARNING, "jobs reach the metadata service")]),
        (
            (RULES % (BY_CGROUP, REFUSED)).replace("runs", "another"),
            22,
            [
                (OK, "jobs reach no"),
                (WARNING, "only the engine's own rules keep jobs of different"),
            ],
        ),
        (
            RULES % (BY_CGROUP, REFUSED),
            2222,
            [(OK, "jobs reach no"), (WARNING, "jobs reach the node's sshd at port 2222")],
        ),
    ],
    ids=[
        "closed",
        "without cgroup v2",
        "opened",
        "of an early version",
        "of a later one",
        "another port",
    ],
)
def test_what_jobs_reach_is_judged_by_the_rules(
    node: NodeSetup, rules: str, port: int, found: list[tuple[FindingLevel, str]]
) -> None:
    for engine in (EngineKind.DOCKER, EngineKind.PODMAN):
        setup = NodeSetup(data=node.data, root=node.root, engine=engine)
        said = list(doctor.firewall(setup, says(nft=rules, sshd=f"Port {port}\nx y\n")))[1:]
        for one, (level, words) in zip(said, found, strict=True):
            assert (one.level, one.message[: len(words)]) == (level, words)


@pytest.mark.parametrize(
    ("pattern", "level"),
    [
        ("core\n", OK),
        ("/var/crash/core.%p\n", OK),
        ("|/usr/share/apport/apport %p\n", WARNING),
        ("@/run/coredump.socket\n", WARNING),
        ("\n", WARNING),
    ],
)
def test_core_dumps_that_go_to_a_program_of_the_node_are_a_warning(
    node: NodeSetup, pattern: str, level: FindingLevel
) -> None:
    folder = node.root / "proc/sys/kernel"
    folder.mkdir(parents=True)
    (folder / "core_pattern").write_text(pattern)
    (finding,) = doctor.core_dumps(node, says())
    assert finding.level is level
    assert finding.fix == ("" if level is OK else FIX)


def test_a_clock_that_nothing_keeps_right_is_a_warning(node: NodeSetup) -> None:
    assert levels(doctor.clock(node, says(timedatectl="yes\n"))) == [OK]
    assert levels(doctor.clock(node, says(timedatectl="no\n"))) == [WARNING]


def _card(root: Path, number: int, kind: str = "0x030200") -> None:
    device = root / f"sys/bus/pci/devices/{number}"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text(f"{kind}\n")


def test_gpus_are_judged_by_card_driver_and_toolkit(node: NodeSetup) -> None:
    assert levels(examination.examine(node, says())) == [OK]
    _card(node.root, 0)
    _card(node.root, 1)
    assert levels(examination.examine(node, says())) == [ERROR]
    version = node.root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.touch()
    assert levels(examination.examine(node, says(nvidia_smi="GPU-0\n"))) == [ERROR, ERROR]
    both = "GPU-0\nGPU-1\n"
    hook = says(nvidia_smi=both, nvidia_container_runtime_hook="1.17")
    assert levels(examination.examine(node, hook)) == [OK, WARNING]
    spec = node.root / "etc/cdi/nvidia.yaml"
    spec.parent.mkdir()
    spec.write_text("kind: nvidia.com/gpu\n")
    assert levels(examination.examine(node, says(nvidia_smi=both))) == [OK, OK]
    _card(node.root, 2, "0x068000")
    without = list(examination.examine(node, says(nvidia_smi=both)))
    assert levels(iter(without)) == [OK, ERROR, OK]
    assert "nvidia-fabricmanager does not run" in without[1].message
    running = says(nvidia_smi=both, systemctl="active\n")
    assert levels(examination.examine(node, running)) == [OK, OK, OK]


def test_a_driver_that_secure_boot_does_not_load_is_told_so(node: NodeSetup) -> None:
    _card(node.root, 0)
    (plain,) = examination.examine(node, says())
    assert "for this kernel" in (plain.fix or "")
    variable = (
        node.root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    )
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\6\0\0\0\1")
    (secure,) = examination.examine(node, says())
    assert "Secure Boot is on" in (secure.fix or "")


def test_a_node_without_addresses_for_networks_is_found() -> None:
    (found,) = judge_networks(NetworksOfNode(networks=0), says())
    assert (found.level, "--job-networks" in found.fix) == (ERROR, True)
    (found,) = judge_networks(NetworksOfNode(networks=64), says())
    assert found.message == "64 runs can have a network at once"
    assert list(judge_networks(NetworksOfNode(), says())) == []


def test_the_doctor_says_who_connects_containers_and_why() -> None:
    no_firewalld = says(nft=Answer(1, "No such file"))
    wired = NetworksOfNode(networks=1022, network_kind="agent")
    found = tuple(judge_networks(wired, no_firewalld))
    assert [one.message for one in found] == [
        "1022 jobs can have a network at once",
        "the shim connects containers itself",
    ]
    (*_, late) = judge_networks(wired, says(nft="table"))
    assert (late.level, "firewalld" in late.message) == (WARNING, True)
    with_a_zone = says(nft='iifname "fl-w*" goto filter_FWD_fairlead')
    assert levels(judge_networks(wired, with_a_zone)) == [OK, OK]
    left = NetworksOfNode(networks=62, network_kind="docker", network_why="no nft")
    (*_, why) = judge_networks(left, no_firewalld)
    assert (why.level, "no nft" in why.message) == (OK, True)
    asked_for = NetworksOfNode(networks=62, network_kind="docker")
    assert levels(judge_networks(asked_for, no_firewalld)) == [OK, OK]


@pytest.mark.parametrize(
    ("answer", "networks"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"hostname":"n","networks":64}', 64),
        (b'HTTP/1.0 200 OK\r\n\r\n{"hostname":"n"}', None),
        (b"HTTP/1.0 500 Internal Server Error\r\n\r\noh", None),
    ],
)
def test_the_shim_is_asked_how_many_networks_it_has(
    tmp_path: Path, answer: bytes, networks: int | None
) -> None:
    path = tmp_path / "shim.sock"
    assert networks_of_shim(path).networks is None
    with listen(path) as server:
        answering = threading.Thread(target=_answer, args=(server, answer))
        answering.start()
        assert networks_of_shim(path).networks == networks
        answering.join()


def _answer(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        assert connection.recv(1 << 12).startswith(b"GET /v1/node HTTP/1.0\r\n")
        connection.sendall(answer)


def test_an_engine_that_cannot_limit_jobs_or_ends_them_is_found() -> None:
    can = {"MemoryLimit": True, "CpuCfsQuota": True, "PidsLimit": True}
    fine = {**can, "ServerVersion": "26.1", "LiveRestoreEnabled": True}
    assert levels(judge_engine(fine)) == [OK]
    assert levels(judge_engine({**fine, "LiveRestoreEnabled": False})) == [OK, WARNING]
    assert levels(judge_engine({**fine, "PidsLimit": False})) == [OK, ERROR]


def test_a_newer_docker_is_recommended_where_starts_take_long() -> None:
    can = {"MemoryLimit": True, "CpuCfsQuota": True, "PidsLimit": True, "LiveRestoreEnabled": True}
    (old,) = judge_engine({**can, "ServerVersion": "20.10.24+dfsg1"})
    (new,) = judge_engine({**can, "ServerVersion": "28.0.1"})
    assert (old.level, "28 or newer is recommended" in old.message) == (OK, True)
    assert (new.level, new.message) == (OK, "Docker 28.0.1 answers")


def _refuses() -> Finding:
    raise docker.errors.APIError("500", explanation="drop all controllers from cgroupv2")


def test_crun_is_tried_where_the_engine_knows_it() -> None:
    known = {"Runtimes": {"runc": {}, "crun": {}}, "DefaultRuntime": "runc"}
    fine, ends = ok("a container with the runtime starts"), bad("a container ends with 1", "fix")
    (found,) = judge_crun(known, lambda: fine)
    assert (found.level, "less time than with runc" in found.message) == (OK, True)
    (found,) = judge_crun(known, lambda: ends)
    assert (found.level, found.message) == (WARNING, "with crun a container ends with 1")
    (found,) = judge_crun(known, _refuses)
    assert (found.level, "cgroupv2" in found.message) == (WARNING, True)


def test_crun_is_not_tried_where_it_is_the_usual_one_or_unknown() -> None:
    usual: dict[str, object] = {"Runtimes": {"crun": {}}, "DefaultRuntime": "crun"}
    others: list[dict[str, object]] = [usual, {"Runtimes": {"runc": {}}}, {}]
    for info in others:
        assert list(judge_crun(info, _refuses)) == []


def test_every_check_is_told_by_its_name_and_every_fault_has_a_fix(node: NodeSetup) -> None:
    found = doctor.examine(node, says())
    assert {each.check for each in found} == {
        *("shim", "runtime", "engine", "sshd", "firewall", "cgroups", "gpus", "disk", "clock"),
        "core dumps",
    }
    assert all(each.fix for each in found if each.level is not OK)


def test_a_folder_that_is_no_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"--runtime .*: there is no bin/fairlead-entrypoint"):
        check_runtime(tmp_path)


def test_a_runtime_that_other_users_may_not_run_is_refused(tmp_path: Path) -> None:
    launcher = tmp_path / "bin/fairlead-entrypoint"
    launcher.parent.mkdir()
    launcher.touch(mode=0o755)
    tmp_path.chmod(0o755)
    check_runtime(tmp_path)
    launcher.chmod(0o750)
    with pytest.raises(StartError, match="others may not read"):
        check_runtime(tmp_path)
