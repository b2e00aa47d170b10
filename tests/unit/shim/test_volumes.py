"""Which volumes a task may have: what is refused before anything is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.wire.container_rules import MAX_VOLUMES
from fairlead.wire.shim import VolumeKind, VolumeMount
from shim.admission import container_rules
from shim.errors import VolumeError


def host(source: str, target: str = "/data", kind: VolumeKind = VolumeKind.HOST) -> VolumeMount:
    return VolumeMount(kind=kind, source=source, target=target)


READ_ONLY_OPT = VolumeMount(kind=VolumeKind.HOST, target="/opt", source="/m", read_only=True)


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        (host("/mnt/d", "data"), "not an absolute path"),
        (host("/mnt/d", "/"), "not an absolute path"),
        (host("/mnt/d", "/data/../etc"), "not an absolute path"),
        (host("/mnt/d", "/opt/fairlead/runtime"), "no volume can be mounted at"),
        (host("/mnt/d", "/proc/sys"), "no volume can be mounted at"),
        (host("/mnt/d", "//proc"), "no volume can be mounted at /proc"),
        (host("/mnt/d", "//opt//fairlead"), "no volume can be mounted at /opt/fairlead"),
        (host("/mnt/d", "/da\0ta"), "not an absolute path"),
        (READ_ONLY_OPT, "must not be read only.* such as /opt/NAME"),
        (host("mnt/d"), "not an absolute path without '..' on the node"),
        (host("/mnt/../etc"), "not an absolute path without '..' on the node"),
        (host("../x", kind=VolumeKind.NAMED), "is not the name of a volume"),
        (host("", kind=VolumeKind.NAMED), "is not the name of a volume"),
        (VolumeMount(kind=VolumeKind.TMPFS, target="/t", size=0), "cannot have the size 0"),
        (VolumeMount(kind=VolumeKind.HOST, target="/t", source="/m", size=1), "cannot have"),
    ],
)
def test_a_volume_that_no_node_would_mount_is_refused(volume: VolumeMount, sentence: str) -> None:
    with pytest.raises(VolumeError, match=sentence):
        container_rules.check_volumes([volume])


def test_two_volumes_at_one_place_are_refused() -> None:
    with pytest.raises(VolumeError, match="two volumes have the target /data"):
        container_rules.check_volumes([host("/mnt/a"), host("/mnt/b", "/data/")])
    with pytest.raises(VolumeError, match="two volumes have the target /data"):
        container_rules.check_volumes([host("/mnt/a"), host("/mnt/b", "//data")])


def test_more_volumes_than_anybody_needs_are_refused() -> None:
    with pytest.raises(VolumeError, match="65 volumes are too many"):
        container_rules.check_volumes([host("/mnt/a", f"/data/{number}") for number in range(65)])


def test_shared_memory_may_be_a_tmpfs_of_its_own() -> None:
    shared = VolumeMount(kind=VolumeKind.TMPFS, target="/dev/shm", size=1 << 20)
    container_rules.check_volumes([shared])
    assert MAX_VOLUMES == 64


def test_the_longest_prefix_that_the_operator_allows_counts() -> None:
    prefixes = (Path("/mnt"), Path("/mnt/data"), Path("/srv"))
    place = container_rules.allowed_path(host("/mnt/data/a/b"), prefixes)
    assert (place.prefix, place.relative) == (Path("/mnt/data"), "a/b")


def test_a_prefix_itself_may_be_mounted() -> None:
    assert container_rules.allowed_path(host("/mnt/data"), (Path("/mnt/data"),)).relative == "."


@pytest.mark.parametrize("source", ["/etc", "/mnt/database", "/"])
def test_a_path_below_no_prefix_is_refused_with_what_is_allowed(source: str) -> None:
    with pytest.raises(VolumeError, match=r"its operator allows: /mnt/data"):
        container_rules.allowed_path(host(source), (Path("/mnt/data"),))


def test_where_the_operator_allows_nothing_that_is_said() -> None:
    with pytest.raises(VolumeError, match=r"its operator allows: none"):
        container_rules.allowed_path(host("/mnt"), ())


def test_a_device_must_lie_where_only_root_can_put_it() -> None:
    device = host("/mnt/data/link-to-a-disk", kind=VolumeKind.DEVICE)
    with pytest.raises(VolumeError, match="may not be a volume"):
        container_rules.allowed_path(device, (Path("/mnt/data"),))
    allowed = host("/dev/vdb", kind=VolumeKind.DEVICE)
    assert container_rules.allowed_path(allowed, (Path("/dev/vdb"),)).prefix == Path("/dev/vdb")
