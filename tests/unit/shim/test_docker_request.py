"""The requests to Docker, also for options that this machine's engine may lack."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.wire.shim import ContainerOptions, NetworkMode, Ulimit, VolumeKind
from shim.engines.base import ContainerSpec, MountSpec, NodeFault
from shim.engines.docker import request

NODE = request.NodeValues(
    api_version="1.41",
    cores=2.0,
    runtime="/opt/fairlead/runtimes/abc",
    gid=7,
    proxy_variables={"HTTP_PROXY": "http://p:1"},
)
SPEC = ContainerSpec(
    task_id="t1",
    run_id="r1",
    allocation_id="p1",
    image="sha256:1",
    record="{}",
    job_folder="/data/job",
    run_folder="/run/t1",
    network_mode=NetworkMode.BRIDGE,
    hostname="fair-wind",
    cpu=0.5,
    memory=64 << 20,
    shm_size=1 << 20,
)


def asked(**changes: Any) -> dict[str, Any]:
    spec = msgspec.structs.replace(SPEC, **changes)
    return request.container(spec, NODE, "fairlead-t1", "net-1")


def host(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = asked(**changes)["host_config"]
    return config


def test_an_ordinary_container_gets_its_share_and_nothing_beyond() -> None:
    config = host()
    assert (config["NanoCpus"], config["Memory"]) == (500_000_000, 64 << 20)
    assert config["MemorySwap"] == config["Memory"]
    assert (config["ShmSize"], config["PidsLimit"]) == (1 << 20, 32768)
    assert (config["NetworkMode"], config["GroupAdd"]) == ("net-1", ["7"])
    beyond = ("Privileged", "CapAdd", "CapDrop", "Ulimits", "ReadonlyRootfs", "Tmpfs")
    assert [name for name in beyond if config.get(name)] == []
    assert (asked()["user"], asked()["hostname"]) == ("0:0", "fair-wind")


def test_nothing_that_an_image_says_of_its_own_life_counts() -> None:
    assert (asked()["healthcheck"], asked()["stop_signal"]) == ({"test": ["NONE"]}, "SIGTERM")


def test_another_oci_runtime_is_asked_for_by_its_name() -> None:
    node = msgspec.structs.replace(NODE, oci_runtime="crun")
    config = request.container(SPEC, node, "fairlead-t1", "net-1")["host_config"]
    assert (config["Runtime"], host().get("Runtime")) == ("crun", None)


def test_an_oci_runtime_that_the_engine_lacks_is_a_fault_of_the_node() -> None:
    info: dict[str, object] = {"Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}}
    request.require_oci_runtime("runc", info)
    request.require_oci_runtime(None, {})
    request.require_oci_runtime("auto", {})
    with pytest.raises(NodeFault, match=r"--oci-runtime crun: the engine knows .*runc; add it"):
        request.require_oci_runtime("crun", info)


def test_more_cores_than_the_node_has_are_all_of_them() -> None:
    assert host(cpu=64.0)["NanoCpus"] == 2_000_000_000


def test_proxies_of_the_node_reach_the_container() -> None:
    assert asked()["environment"] == {"HTTP_PROXY": "http://p:1"}


@pytest.mark.parametrize(
    ("info", "parent"),
    [
        ({"CgroupVersion": "2", "CgroupDriver": "cgroupfs"}, "/fairlead"),
        ({"CgroupVersion": "2", "CgroupDriver": "systemd"}, "fairlead.slice"),
        ({"CgroupVersion": "1", "CgroupDriver": "cgroupfs"}, None),
        ({}, None),
    ],
)
def test_the_firewall_knows_containers_in_the_nodes_network_by_their_cgroup(
    info: dict[str, str], parent: str | None
) -> None:
    assert request.cgroup_parent(info) == parent
    for mode, wanted in ((NetworkMode.HOST, parent), (NetworkMode.BRIDGE, None)):
        node = msgspec.structs.replace(NODE, cgroup_parent=parent)
        spec = msgspec.structs.replace(SPEC, network_mode=mode)
        made = request.container(spec, node, "fairlead-t1", "net-1")
        assert made["host_config"].get("CgroupParent") == wanted


def test_in_the_hosts_network_a_container_has_the_hosts_name() -> None:
    assert asked(network_mode=NetworkMode.HOST)["hostname"] is None


def test_limits_privileges_and_capabilities_are_passed_on() -> None:
    config = host(
        options=ContainerOptions(
            privileged=True,
            cap_add=("IPC_LOCK",),
            cap_drop=("NET_RAW",),
            ulimits=(Ulimit(name="memlock", soft=-1, hard=-1),),
            pids_limit=99,
        )
    )
    assert (config["Privileged"], config["PidsLimit"]) == (True, 99)
    assert (config["CapAdd"], config["CapDrop"]) == (["IPC_LOCK"], ["NET_RAW"])
    assert config["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]


def test_a_read_only_root_leaves_room_for_temporary_files_unless_a_volume_is_there() -> None:
    mounts = (MountSpec(kind=VolumeKind.TMPFS, target="/tmp", size=1 << 20),)
    read_only = ContainerOptions(read_only_root=True)
    assert set(host(options=read_only)["Tmpfs"]) == {"/tmp", "/run"}
    config = host(options=read_only, mounts=mounts)
    assert (config["ReadonlyRootfs"], set(config["Tmpfs"])) == (True, {"/run"})


def test_the_engines_init_is_there_when_it_is_asked_for() -> None:
    assert host(options=ContainerOptions(init=True))["Init"] is True
    assert "Init" not in host(options=ContainerOptions()), "the daemon's own choice is kept"


def test_volumes_are_mounted_by_their_kind() -> None:
    volumes = (
        MountSpec(kind=VolumeKind.HOST, source="/data/mounts/t1/0", target="/a", read_only=True),
        MountSpec(kind=VolumeKind.DEVICE, source="/data/mounts/t1/1", target="/b"),
        MountSpec(kind=VolumeKind.NAMED, source="fairlead-d", target="/c"),
        MountSpec(kind=VolumeKind.TMPFS, target="/d", size=5),
    )
    mounts = host(mounts=volumes)["Mounts"][3:]
    assert [(m["Type"], m["Source"], m["Target"], m["ReadOnly"]) for m in mounts] == [
        ("bind", "/data/mounts/t1/0", "/a", True),
        ("bind", "/data/mounts/t1/1", "/b", False),
        ("volume", "fairlead-d", "/c", False),
        ("tmpfs", None, "/d", False),
    ]
    assert mounts[3]["TmpfsOptions"] == {"SizeBytes": 5, "Mode": 0o1777}


def test_a_limit_that_the_engine_may_not_raise_is_explained() -> None:
    words = "error setting rlimit type 8: operation not permitted: unknown"
    assert "ulimits" in request.explain_start(words)
    assert request.explain_start("something else") == "something else"


def test_an_engine_without_an_init_is_explained() -> None:
    words = 'exec: "docker-init": executable file not found in $PATH'
    assert "leave it out (orphans are reaped anyway)" in request.explain_start(words)
