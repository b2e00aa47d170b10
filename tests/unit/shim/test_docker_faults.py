"""A container that cannot be made is the node's fault or the job's: told by engines' own words."""

from __future__ import annotations

from typing import Any

import pytest

from shim.engines.base import NodeFault
from shim.engines.docker.api import Conflict, DockerRefused, NotFound, ensure_volume
from shim.engines.docker.faults import hides_the_runtime, is_of_its_address, of_create, of_start
from shim.errors import EngineError, VolumeError

RUNC = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
CRUN = "failed to create shim task: OCI runtime create failed: "
INIT = f"{RUNC}container process: error during container init: "
ID = "0e19e79759bee41679c887a595b2e71c2da97376d75f170439c95b03110ff04a"
ENTRYPOINT = "/opt/fairlead/runtime/bin/fairlead-entrypoint"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "No such image: sha256:2fb4e1"),
        (400, 'invalid mount config for type "bind": bind source path does not exist: /opt/x'),
        (400, "Unknown runtime specified nvidia"),
        (
            500,
            "error creating overlay mount to /var/lib/docker/overlay2/x: no space left on device",
        ),
        (500, "open /var/lib/docker/containers/x/.tmp-hostconfig.json: read-only file system"),
        # Of ext4 with 65,000 links to one file, a lower layer that is above another one, and a disk
        # that was repaired.
        (500, f"link ../{ID}/diff /var/lib/docker/overlay2/l/ABC: too many links"),
        (500, f"mkdir /var/lib/docker/overlay2/{ID}-init: too many links"),
        (
            500,
            f"error creating overlay mount to /var/lib/docker/overlay2/{ID}/merged: too many "
            "levels of symbolic links",
        ),
        (500, f"open /var/lib/docker/containers/{ID}/config.v2.json: is a directory"),
        (503, "the engine is going away"),
    ],
)
def test_a_lack_of_the_node_when_a_container_is_created_is_a_node_fault(
    status: int, said: str
) -> None:
    assert isinstance(of_create(answer(status, said)), NodeFault)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "network fairlead-0123456789ab not found"),
        (500, "failed to create endpoint f on network fairlead-1: adding interface veth1 to bridge "
              "br-1 failed: could not find bridge br-1: no such network interface"),
        (500, "driver failed programming external connectivity on endpoint f: iptables failed: "
              "iptables: No chain/target/match by that name."),
        (400, f'{RUNC}container process: exec: "{ENTRYPOINT}": stat {ENTRYPOINT}: no such file or '
              "directory: unknown"),
        (400, f'{RUNC}container process: exec: "{ENTRYPOINT}": permission denied: unknown'),
        (500, f'{INIT}error mounting "/opt/fairlead/runtimes/1" to rootfs at '
              '"/opt/fairlead/runtime": stat /opt/fairlead/runtimes/1: no such file or directory'),
        (500, 'could not select device driver "" with capabilities: [[gpu]]'),
        (500, 'could not select device driver "cdi" with capabilities: []'),
        (500, "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1"),
        (500, 'error gathering device information while adding custom device "/dev/nvidia7": no '
              "such file or directory"),
        (500, f"{INIT}error running hook #0: exit status 1, stderr: nvidia-container-cli: "
              "initialization error: nvml error: driver not loaded: unknown"),
        (500, f"{INIT}error setting cgroup config for procHooks process: no such device: unknown"),
        (409, "container is marked for removal and cannot be started"),
        (500, f"{RUNC}container process: unable to apply cgroup configuration: mkdir "
              "/sys/fs/cgroup/system.slice/docker-1.scope: not a directory: unknown"),
        (500, f"{CRUN}fork/exec /usr/bin/containerd-shim-runc-v2: not a directory"),
        (400, f"{CRUN}executable file `{ENTRYPOINT}` not found: No such file or directory"),
        (500, f"{CRUN}the path `{ENTRYPOINT}` exists but it is not executable: Operation not "
              "permitted: unknown"),
        (400, f"{CRUN}unable to retrieve OCI runtime error (open /run/containerd/x/log.json: no "
              "such file or directory): fork/exec /usr/bin/crun: no such file or directory"),
        (400, f"{CRUN}unable to retrieve OCI runtime error (open /run/containerd/x/log.json: no "
              'such file or directory): exec: "crun": executable file not found in $PATH: unknown'),
    ],
)  # fmt: skip
def test_a_lack_of_the_node_when_a_container_is_started_is_a_node_fault(
    status: int, said: str
) -> None:
    found = of_start(answer(status, said))
    assert isinstance(found, NodeFault)
    assert found.reason == "instance_unreachable"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Duplicate mount point: /x"),
        (400, "invalid mount config for type \"bind\": destination can't be '/'"),
        (400, 'invalid CapAdd: unknown capability: "CAP_NOPE"'),
        (400, "Minimum memory limit allowed is 6MB"),
        (500, "Cannot mkdir: /w is not a directory"),
        (500, "evalSymlinksInScope: too many links in /var/lib/docker/overlay2/x/merged/w"),
        (500, "lstat /var/lib/docker/overlay2/x/merged/xxx: file name too long"),
        (500, f"mkdir /var/lib/docker/overlay2/{ID}/merged/w: not a directory"),
        (500, f"mkdir /var/lib/docker/overlay2/{ID}/merged/overlay2/l/w: not a directory"),
        (500, "cannot mount volume over existing file, file exists /x/merged/f"),
    ],
)
def test_an_impossible_wish_of_a_job_when_its_container_is_created_is_no_node_fault(
    status: int, said: str
) -> None:
    found = of_create(answer(status, said))
    assert (type(found), found.reason) == (EngineError, "creating_container_error")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, f'{INIT}error mounting "/var/lib/fairlead/mounts/t/0" to rootfs at "/proc/x": '
              "cannot be mounted because it is inside /proc: unknown"),
        (400, f'{INIT}error mounting "/var/lib/fairlead/mounts/t/0" to rootfs at "/bin/sh": mount '
              "/var/lib/fairlead/mounts/t/0:/bin/sh: not a directory: unknown: Are you trying to "
              "mount a directory onto a file (or vice-versa)?"),
        (500, "unable to find user anna: no matching entries in passwd file"),
        (500, "uids and gids must be in range 0-2147483647"),
        (500, "unable to find additional groups [0]: read /x/merged/etc/group: is a directory"),
        (500, f"{INIT}error setting rlimits for ready process: error setting rlimit type 7: "
              "operation not permitted: unknown"),
        (500, f"{RUNC}container process: unable to apply caps: operation not permitted: unknown"),
        (500, f"{INIT}error setting cgroup config for procHooks process: failed to write "
              '"1000000000000": write /sys/fs/cgroup/pids/x/pids.max: invalid argument: unknown'),
        (500, f"{RUNC}container process: container init was OOM-killed (memory limit too low?)"),
        (500, f"{INIT}error running hook #0: exit status 1, stderr: nvidia-container-cli: "
              "requirement error: unsatisfied condition: cuda>=12.4, please update your driver"),
        (400, f"{CRUN}mkdir `/proc/x`: No such file or directory: unknown"),
        (400, f"{CRUN}mount `/var/lib/fairlead/mounts/t/0` to `bin/sh`: Not a directory: unknown: "
              "Are you trying to mount a directory onto a file (or vice-versa)?"),
        (500, f"{CRUN}setrlimit `RLIMIT_NOFILE`: Operation not permitted: unknown"),
        (500, f"{CRUN}capset: Operation not permitted: unknown"),
        (500, f"{CRUN}write file `pids.max`: Invalid argument: unknown"),
        (500, f"{CRUN}write to `pids.max`: Invalid argument"),
    ],
)  # fmt: skip
def test_an_impossible_wish_of_a_job_when_its_container_is_started_is_no_node_fault(
    status: int, said: str
) -> None:
    found = of_start(answer(status, said))
    assert (type(found), found.reason) == (EngineError, "creating_container_error")


def answer(status: int, said: str) -> DockerRefused:
    if status == 404:
        return NotFound(said)
    return Conflict(said) if status == 409 else DockerRefused(said, status)


@pytest.mark.parametrize(
    ("status", "kind"), [(500, NodeFault), (400, VolumeError), (409, VolumeError)]
)
async def test_a_named_volume_is_the_nodes_fault_where_the_engine_fails(
    status: int, kind: type[EngineError]
) -> None:
    async def call(act: Any) -> Any:
        raise answer(status, "refused")

    with pytest.raises(kind, match="volume data: refused"):
        await ensure_volume(call, None, "data")


@pytest.mark.parametrize(
    ("said", "of_its_address"),
    [
        ("Address already in use", True),
        ("failed to set up container networking: Address already in use", True),
        ("requested ip address 10.80.0.2 is already allocated to container ID 1", True),
        ("Error starting userland proxy: listen tcp4 127.0.0.1:1: bind: address already in use",
         False),
        ("failed to set up container networking: driver failed programming external connectivity "
         "on endpoint f: failed to bind host port 127.0.0.1:1:172.31.0.2:22/tcp: address already "
         "in use", False),
    ],
)  # fmt: skip
def test_an_address_in_use_is_not_taken_for_a_port_in_use(said: str, of_its_address: bool) -> None:
    assert is_of_its_address(answer(403, said)) == of_its_address


@pytest.mark.parametrize(
    ("targets", "user", "why", "is_the_images"),
    [
        (("/opt/fairlead/runtime", "/data"), "", "no such file or directory", False),
        (("/opt/fairlead/runtime/bin",), "", "no such file or directory", True),
        (("/opt/fairlead/runtime2",), "7", "no such file or directory", False),
        ((), "nobody", "permission denied", True),
        ((), "7:0", "Permission denied", True),
        ((), "0:7", "permission denied", False),
        ((), "", "permission denied", False),
    ],
)
def test_a_runtime_that_a_node_does_not_run_is_the_images_only_if_that_is_known(
    targets: tuple[str, ...], user: str, why: str, is_the_images: bool
) -> None:
    made = {"Mounts": [{"Destination": one} for one in targets], "Config": {"User": user}}
    said = answer(400, f'{RUNC}container process: exec: "{ENTRYPOINT}": {why}: unknown')
    assert hides_the_runtime(made, said) is is_the_images
