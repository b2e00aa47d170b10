"""The look at a container's lists of users and groups, which must find what the engine opens."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import docker.errors
import msgspec
import pytest
import requests

from fairlead.wire.shim import VolumeKind
from shim.engines.base import ContainerSpec, MountSpec
from shim.engines.docker.images import UserFiles
from shim.errors import EngineError
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import CONTAINER

_LINK, _FIFO, _FOLDER = 1 << 27, 1 << 25, 1 << 31
FOLDER, FILE, FIFO = "folder", "file", "fifo"
Tree = Mapping[str, str]
"""What is at each path; `-> x`: a link to x."""

PLAIN: Tree = {"/etc": FOLDER, "/etc/passwd": FILE}
LINKED: Tree = {
    "/etc": FOLDER,
    "/etc/passwd": "-> /lists/etc/passwd",
    "/lists": FOLDER,
    "/lists/etc": "-> ../far",
    "/far": FOLDER,
    "/far/passwd": FILE,
}
VOLUMES: Mapping[str, Tree] = {
    "harmless": {"": FOLDER, "/etc": FOLDER, "/etc/passwd": FILE, "/passwd": FILE},
    "waits": {"": FOLDER, "/passwd": FIFO, "/etc": FOLDER, "/etc/passwd": FIFO},
    "leads": {"": FOLDER, "/passwd": "-> /other/passwd"},
    "a-file": {"": FILE},
}


class Answer:
    def __init__(
        self, headers: Mapping[str, str] | None, content: bytes = b"", status: int = 404
    ) -> None:
        self.status_code = status if headers is None else 200
        self.headers = headers or {}
        self.raw = io.BytesIO(content)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


class Api:
    """Containers of one image. It counts the looks at each path, in all of them."""

    base_url, api_version, timeout = "http+docker://localhost", "1.41", 60

    def __init__(self, image: Tree, left: Iterable[str] = ()) -> None:
        self._image = image
        self.names = list(left)
        self.made = 0
        self.keeps = False
        self.may_look = threading.Event()
        self.may_look.set()
        self._mounts: dict[str, list[Any]] = {}

    def create_host_config(self, *, network_mode: str, mounts: list[Any]) -> list[Any]:
        assert network_mode == "none"
        return mounts

    def create_container(
        self, image: str, command: list[str], *, name: str, host_config: list[Any], **asked: Any
    ) -> dict[str, str]:
        assert name not in self.names
        self.names.append(name)
        self._mounts[name] = host_config
        self.made += 1
        return {"Id": name}

    def containers(self, *, all: bool, filters: Mapping[str, str]) -> list[dict[str, Any]]:
        assert all
        assert filters["name"].startswith("^/?look")
        return [{"Id": name, "Names": [f"/{name}"]} for name in self.names]

    def remove_container(self, name: str, **asked: Any) -> None:
        if self.keeps:
            answer = requests.Response()
            answer.status_code = 500
            raise docker.errors.APIError("busy", answer, "busy")
        self.names.remove(name)

    def head(self, address: str, *, params: Mapping[str, str], timeout: float) -> Answer:
        if not self.may_look.wait(LONG):
            raise AssertionError("nobody lets it look")
        name = address.split("/")[-2]
        # dockerd 28: "path escapes from parent".
        if any(self._image.get(one["Target"], "").startswith("-> /") for one in self._mounts[name]):
            return Answer(None, status=500)
        what = self._at(name, params["path"])
        if what is None:
            return Answer(None)
        end = self._end(name, params["path"])
        modes = {FOLDER: _FOLDER, FILE: 0, FIFO: _FIFO}
        told = json.dumps({"mode": modes.get(what, _LINK), "linkTarget": end})
        return Answer({"X-Docker-Container-Path-Stat": base64.b64encode(told.encode()).decode()})

    def get(self, address: str, *, params: Mapping[str, str], **asked: Any) -> Answer:
        name, path = address.split("/")[-2], params["path"]
        what = self._at(name, path)
        # dockerd 20.10 waits for it.
        assert self._at(name, self._end(name, path)) != FIFO
        assert what is not None
        assert what.startswith("-> ")
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.SYMTYPE, what[3:]
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w") as archive:
            archive.addfile(entry)
        return Answer({}, written.getvalue())

    def _end(self, name: str, path: str) -> str:
        """Return where the path leads in the end."""
        left, at = PurePosixPath(path).parts[1:], PurePosixPath("/")
        for _ in range(10):
            if not left:
                break
            here = at.parent if left[0] == ".." else at / left[0]
            what, left = self._tree(name, str(here)), left[1:]
            if what is not None and what.startswith("-> "):
                target = PurePosixPath(what[3:])
                at = PurePosixPath("/") if target.is_absolute() else at
                left = (*target.parts[target.is_absolute() :], *left)
            else:
                at = here
        return str(at)

    def _at(self, name: str, path: str) -> str | None:
        """Return what is there; only folders lie above it, or the look would be wrong."""
        for above in PurePosixPath(path).parents:
            assert self._tree(name, str(above)) in (FOLDER, None, FIFO, FILE)
        return self._tree(name, path)

    def _tree(self, name: str, path: str) -> str | None:
        if path == "/":
            return FOLDER
        for mount in reversed(self._mounts[name]):
            if PurePosixPath(path).is_relative_to(mount["Target"]):
                # dockerd 28 waits for it, to mount a file there.
                assert self._image.get(mount["Target"]) != FIFO
                tree = VOLUMES[Path(mount["Source"]).name]
                return tree.get(path.removeprefix(mount["Target"]))
        return self._image.get(path)


def spec(**volumes: str) -> ContainerSpec:
    mounts = tuple(
        MountSpec(kind=VolumeKind.HOST, source=f"/volumes/{source}", target=f"/{target}")
        for target, source in volumes.items()
    )
    return msgspec.structs.replace(CONTAINER, mounts=mounts)


@asynccontextmanager
async def looks(api: Api) -> AsyncIterator[UserFiles]:
    files = UserFiles(asyncio.to_thread, "look")
    files.open(api)
    try:
        yield files
    finally:
        api.may_look.set()
        await files.close()


@pytest.mark.parametrize(
    ("image", "volumes"),
    [
        ({"/etc": FOLDER, "/etc/passwd": FIFO}, {}),
        ({"/etc": FOLDER, "/etc/group": "-> ../fifo", "/fifo": FIFO}, {}),
        ({"/etc": "-> far", "/far": FOLDER, "/far/passwd": FIFO}, {}),
        (PLAIN, {"etc": "waits"}),
        ({"/etc": "-> far/etc", "/far": FOLDER, "/far/etc": FOLDER}, {"far": "waits"}),
        ({"/etc": FOLDER, "/etc/passwd": "-> /gone/etc/passwd"}, {"gone": "waits"}),
        (LINKED, {"far": "waits"}),
        (LINKED, {"lists": "waits"}),
        (PLAIN, {"other": "waits", "etc": "leads"}),
        ({**PLAIN, "/etc/group": "-> /fifo/x", "/fifo": FIFO}, {"fifo": "a-file"}),
    ],
)
async def test_what_the_engine_would_wait_for_is_refused_whatever_the_way(
    image: Tree, volumes: Mapping[str, str]
) -> None:
    api = Api(image)
    async with looks(api) as files:
        # An image that is known is refused for its volumes all the same.
        if volumes:
            await files.check(spec())
        with pytest.raises(EngineError, match="of the image or of a volume is no file"):
            await files.check(spec(**volumes))
        assert api.names == []


@pytest.mark.parametrize("image", [PLAIN, LINKED, {}, {"/etc": "-> etc"}], ids=str)
async def test_an_image_is_looked_at_once_unless_a_volume_is_on_the_way(image: Tree) -> None:
    api = Api(image)
    async with looks(api) as files:
        await files.check(spec())
        await files.check(spec(data="waits"))
        assert api.made == 1
        await files.check(spec(data="waits", etc="harmless"))
        assert (api.made, api.names) == (3, [])


async def test_all_who_want_an_image_share_one_look_also_if_the_first_leaves() -> None:
    api = Api({"/etc": FOLDER, "/etc/passwd": FIFO})
    api.may_look.clear()
    async with looks(api) as files:
        files.expect("sha256:1")
        first, *others = (asyncio.create_task(files.check(spec())) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        api.may_look.set()
        found = await asyncio.gather(*others, return_exceptions=True)
        assert [type(one) for one in found] == [EngineError, EngineError]
        assert api.made == 1
        # What is refused is not remembered: the next task is refused for what is there then.
        with pytest.raises(EngineError):
            await files.check(spec())
        assert (first.cancelled(), api.made) == (True, 2)


async def test_an_image_that_is_expected_is_known_when_its_container_is_made() -> None:
    api = Api(PLAIN)
    async with looks(api) as files:
        files.expect("sha256:1")
        await files.check(spec())
        files.expect("sha256:1")
        await files.check(spec())
        assert api.made == 1


async def test_images_are_expected_one_at_a_time_and_a_start_waits_for_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shim that starts expects all images that its node has pulled ahead."""
    api = Api(PLAIN)
    api.may_look.clear()
    async with looks(api) as files:
        look, at_once = files._look, list[int]()

        def noting(image: str) -> asyncio.Task[None]:
            looking = look(image)
            at_once.append(len(files._looking))
            return looking

        monkeypatch.setattr(files, "_look", noting)
        for number in range(1, 40):
            files.expect(f"sha256:{number}")
        # The first one takes long, and the last one is started meanwhile.
        check = asyncio.create_task(files.check(msgspec.structs.replace(spec(), image="sha256:39")))
        await eventually(lambda: api.made == 2)
        api.may_look.set()
        await check
        await eventually(lambda: len(files._known) == 39)
        assert api.made == 39
        assert at_once == [1, 2, *[1] * 37]


async def test_no_image_is_looked_at_once_it_is_closed() -> None:
    api = Api(PLAIN)
    api.may_look.clear()
    files = UserFiles(asyncio.to_thread, "look", api)
    for number in range(1, 4):
        files.expect(f"sha256:{number}")
    await eventually(lambda: api.made == 1)
    api.may_look.set()
    await files.close()
    assert (api.made, files._looking) == (1, {})


async def test_containers_that_a_crash_left_are_removed_and_a_used_name_is_in_nobodys_way() -> None:
    api = Api(PLAIN, left=["look", "look-0123abcd"])
    async with looks(api) as files:
        await files.check(spec())
        assert api.names == []
        api.keeps = True
        await files.check(spec(etc="harmless"))
        left = len(api.names)
        assert left == 2
        api.keeps = False
        await files.check(spec(etc="harmless"))
        assert api.names == []


async def test_a_volume_past_which_the_engine_cannot_look_is_refused() -> None:
    image = {"/etc": FOLDER, "/etc/passwd": "-> /lists/passwd", "/lists": "-> /far"}
    async with looks(Api(image)) as files:
        with pytest.raises(EngineError, match="cannot look at /etc with the job's volumes"):
            await files.check(spec(lists="waits"))
