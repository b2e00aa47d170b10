"""What every `CgroupTree` does. `place`: a cgroup below which it may make others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shim.node.cgroups import CgroupTree, Place, TaskLeaves


class CgroupTreeContract:
    @pytest.fixture
    def tree(self) -> CgroupTree:
        raise NotImplementedError

    @pytest.fixture
    def place(self, tree: CgroupTree) -> Place:
        found = tree.places(os.getpid())
        assert tree.why_none(found) is None
        return found[0]

    def test_a_cgroup_is_made_and_removed_however_often(
        self, tree: CgroupTree, place: Place
    ) -> None:
        folder = Path(place.folder, "fairlead-contract-1")
        tree.make(folder)
        tree.make(folder)
        assert folder.name in tree.names(Path(place.folder))
        assert (tree.remove(folder), tree.remove(folder)) == (True, True)
        assert folder.name not in tree.names(Path(place.folder))
        assert tree.names(folder) == ()

    def test_a_file_that_is_not_there_is_none(self, tree: CgroupTree, place: Place) -> None:
        assert tree.open(Path(place.folder), "no.such.file", os.O_RDONLY) is None
        assert tree.open(Path(place.folder, "gone"), place.enter, os.O_RDONLY) is None

    def test_without_places_there_is_a_reason(self, tree: CgroupTree) -> None:
        assert tree.why_none(())

    def test_leaves_have_the_same_files_each_and_go_again(
        self, tree: CgroupTree, place: Place
    ) -> None:
        leaves = TaskLeaves(tree, (place,), "contract")
        try:
            files, fds = leaves.make(range(3))
            home = leaves.open_home()
            assert len(fds) == 3 * len(files)
            assert len(home) == 1
            for fd in (*fds, *home):
                os.close(fd)
            assert leaves.remove(1)
            assert leaves.remove_all(frozenset({2}))
            names = [name for name in tree.names(Path(place.folder)) if "contract" in name]
            assert names == ["fairlead-contract-2"]
        finally:
            assert leaves.remove_all()
