"""Where a process is in the hierarchies of both versions, and the leaves below that place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.processes.leaves import LeafFile
from shim.node.cgroups import CgroupTree, Place, TaskLeaves, places_of
from tests.doubles.cgroups import FolderTree, FullTree
from tests.support.cgroup_contract import CgroupTreeContract

ONE = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
TWO = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
ONLY_TWO = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
ROOT = "23 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw"


class TestFolders(CgroupTreeContract):
    @pytest.fixture
    def tree(self, tmp_path: Path) -> CgroupTree:
        return FolderTree(tmp_path)


@pytest.mark.parametrize(
    ("mounts", "cgroups", "found"),
    [
        pytest.param(
            [ROOT, ONLY_TWO],
            "0::/system.slice/docker-1.scope",
            [(2, "/sys/fs/cgroup/system.slice/docker-1.scope")],
            id="version 2 alone",
        ),
        pytest.param(
            [ROOT, CPU, ONE],
            "4:memory:/docker/1\n1:cpu:/docker/1",
            [(1, "/sys/fs/cgroup/memory/docker/1")],
            id="version 1 alone: of the controllers only memory counts",
        ),
        pytest.param(
            [ONE, CPU, TWO],
            "4:memory:/docker/1\n1:cpu:/docker/1\n0::/",
            [(2, "/sys/fs/cgroup/unified"), (1, "/sys/fs/cgroup/memory/docker/1")],
            id="both versions",
        ),
        pytest.param(
            ["30 23 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw"],
            "0::/box/inner",
            [(2, "/sys/fs/cgroup/inner")],
            id="a part of the tree is mounted",
        ),
        pytest.param(
            ["30 23 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw"],
            "0::/boxes/inner",
            [],
            id="the process is in another part",
        ),
        pytest.param([ONLY_TWO], "0::/../other", [], id="outside of this cgroup namespace"),
        pytest.param(
            [ONLY_TWO.replace("rw,nosuid", "ro,nosuid")], "0::/a", [], id="mounted read-only"
        ),
        pytest.param(["", "30 23 - x", ONLY_TWO], "", [], id="no membership"),
    ],
)
def test_the_places_of_a_process(
    mounts: list[str], cgroups: str, found: list[tuple[int, str]]
) -> None:
    assert places_of(cgroups, "\n".join(mounts)) == tuple(Place(*one) for one in found)


def test_a_leaf_is_made_in_each_hierarchy_with_what_its_version_has(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path)
    files, fds = TaskLeaves(tree, tree.found, "t1").make(range(4, 6))
    assert files == (
        *(LeafFile.ENTER, LeafFile.EVENTS, LeafFile.KILL),
        *(LeafFile.ENTER, LeafFile.EVENTS),
    )
    assert len(fds) == 2 * len(files)
    assert tree.leaves() == {"fairlead-t1-4", "fairlead-t1-5"}
    close(fds)


def test_a_leaf_with_a_process_stays_until_that_has_ended(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path)
    leaves = TaskLeaves(tree, tree.found, "t1")
    close(leaves.make(range(2))[1])
    there = tmp_path / "v2/fairlead-t1-0/cgroup.procs"
    there.write_text("17\n")
    assert (leaves.remove(0), leaves.remove(1)) == (False, True)
    assert not leaves.remove_all()
    there.write_text("")
    assert leaves.remove_all()
    assert tree.leaves() == set()


def test_the_leaves_of_another_task_are_left_alone(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path)
    for task in ("t1", "t1-1"):
        close(TaskLeaves(tree, tree.found, task).make(range(1))[1])
    assert TaskLeaves(tree, tree.found, "t1").remove_all()
    assert tree.leaves() == {"fairlead-t1-1-0"}


def test_what_cannot_be_made_costs_no_descriptor(tmp_path: Path) -> None:
    tree = FullTree(tmp_path)
    with pytest.raises(OSError, match="No space"):
        TaskLeaves(tree, tree.found, "t1").make(range(2))


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
