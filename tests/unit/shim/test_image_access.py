"""Images that were pulled with credentials: another run gets them when their registry says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.shim import Fence, PullPolicy, RegistryAuth, TaskInfo, TaskStatus
from shim.daemon import Daemon
from shim.engines.base import EngineUnavailable, ImageError, ImageInfo, ImageProblem, repository_of
from shim.image_cache.access import ImageAccess, PrivateImage
from shim.state.fencing import Caller
from tests.doubles.engines import MemoryEngine, MemoryHost
from tests.doubles.failing_engines import FailingEngine, HangingRegistry
from tests.doubles.records import FailingRecords, MemoryRecords
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import Node, request, until

TOOL = "registry:5000/team/tool:1"
IMAGE = ImageInfo(id="sha256:tool", digest="sha256:d1")
ANNA = RegistryAuth(username="anna", password="s3cret")
BEN = RegistryAuth(username="ben", password="guess")
PULLED, ASKED = f"pull {TOOL}", f"ask {TOOL}"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.host.registry[TOOL] = (IMAGE, ANNA.password)
    return made


async def ended(daemon: Daemon, run: str, **changes: Any) -> TaskInfo:
    """A task of the run, once it runs or cannot."""
    wanted = request(**{"run_id": run, "allocation_id": f"of-{run}", "image": TOOL, **changes})
    await daemon.supervisor.put(f"t-{run}", wanted, Caller(run, Fence(1, 1), 0))
    supervisor, over = daemon.supervisor, (TaskStatus.RUNNING, TaskStatus.TERMINATED)
    await eventually(lambda: supervisor.info(f"t-{run}").status in over)
    return supervisor.info(f"t-{run}")


async def test_a_run_without_the_password_does_not_get_what_another_one_pulled(node: Node) -> None:
    async with node.shim() as daemon:
        assert (await ended(daemon, "r1", registry_auth=ANNA)).status is TaskStatus.RUNNING
        for run, auth in (("r2", None), ("r3", BEN)):
            refused = await ended(daemon, run, registry_auth=auth)
            assert (refused.reason, refused.container_id) == ("image_pull_failed", None)
            assert "the registry refused" in (refused.message or "")
        assert node.host.log == [PULLED, ASKED, ASKED]


@pytest.mark.parametrize("policy", PullPolicy)
async def test_the_digest_opens_it_to_no_run_whatever_the_pull_policy(
    node: Node, policy: PullPolicy
) -> None:
    by_digest = f"{repository_of(TOOL)}@{IMAGE.digest}"
    node.host.registry[by_digest] = (IMAGE, ANNA.password)
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        node.host.local[by_digest] = IMAGE
        for run, auth in (("r2", None), ("r3", BEN)):
            refused = await ended(
                daemon, run, image=by_digest, pull_policy=policy, registry_auth=auth
            )
            assert (refused.reason, refused.container_id) == ("image_pull_failed", None)
        right = await ended(daemon, "r4", image=by_digest, pull_policy=policy, registry_auth=ANNA)
        assert right.status is TaskStatus.RUNNING


async def test_a_registry_that_hides_an_image_as_missing_does_not_give_it_by_its_digest(
    node: Node,
) -> None:
    """Some answer 404 where others answer 401."""
    by_digest = f"{repository_of(TOOL)}@{IMAGE.digest}"
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        node.host.local[by_digest] = IMAGE
        refused = await ended(daemon, "r2", image=by_digest)
        assert (refused.reason, refused.container_id) == ("image_pull_failed", None)


async def test_a_run_with_the_password_gets_it_and_nothing_is_pulled(node: Node) -> None:
    async with node.shim() as daemon:
        for run in ("r1", "r2"):
            info = await ended(daemon, run, registry_auth=ANNA)
            assert info.status is TaskStatus.RUNNING
        assert node.host.log == [PULLED, ASKED]


async def test_a_run_is_asked_about_once(node: Node) -> None:
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        for task in ("t2", "t3"):
            wanted = request(run_id="r2", allocation_id=task, image=TOOL, registry_auth=ANNA)
            await daemon.supervisor.put(task, wanted, Caller("r2", Fence(1, 1), 0))
            await until(daemon, task, TaskStatus.RUNNING)
        again = request(run_id="r1", allocation_id="t4", image=TOOL)
        await daemon.supervisor.put("t4", again, Caller("r1", Fence(1, 1), 0))
        await until(daemon, "t4", TaskStatus.RUNNING)
        assert node.host.log == [PULLED, ASKED]


async def test_an_image_that_the_registry_gives_to_all_is_for_all(node: Node) -> None:
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        node.host.registry[TOOL] = (IMAGE, None)
        assert (await ended(daemon, "r2")).status is TaskStatus.RUNNING
        assert node.host.log == [PULLED, ASKED]


async def test_an_image_pulled_without_a_password_is_given_without_asking_the_registry(
    node: Node,
) -> None:
    node.host.registry[TOOL] = (IMAGE, None)
    async with node.shim() as daemon:
        await ended(daemon, "r1")
        await ended(daemon, "r2", registry_auth=ANNA, pull_policy=PullPolicy.ALWAYS)
        assert (await ended(daemon, "r3")).status is TaskStatus.RUNNING
        assert node.host.log == [PULLED, PULLED]


async def test_an_operator_may_open_them_to_all(node: Node) -> None:
    node.settings = msgspec.structs.replace(node.settings, private_images_open=True)
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        assert (await ended(daemon, "r2")).status is TaskStatus.RUNNING
    node.settings = msgspec.structs.replace(node.settings, private_images_open=False)
    async with node.shim() as daemon:
        assert (await ended(daemon, "r3")).reason == "image_pull_failed"


async def test_the_next_life_of_the_shim_knows_them_and_wants_the_credentials_again(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
    async with node.shim() as daemon:
        assert (await ended(daemon, "r2")).reason == "image_pull_failed"
    hanging = HangingRegistry(node.host)
    async with node.shim(hanging) as daemon:
        wanted = request(run_id="r3", allocation_id="of-r3", image=TOOL, registry_auth=ANNA)
        await daemon.supervisor.put("t-r3", wanted, Caller("r3", Fence(1, 1), 0))
        await asyncio.wait_for(hanging.asked.wait(), LONG)
    async with node.shim() as daemon:
        await eventually(lambda: daemon.supervisor.info("t-r3").needs_credentials)
        assert (await ended(daemon, "r3", registry_auth=ANNA)).status is TaskStatus.RUNNING


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (PullPolicy.IF_NOT_PRESENT, TaskStatus.RUNNING),
        (PullPolicy.NEVER, TaskStatus.TERMINATED),
    ],
)
async def test_an_image_that_the_registry_has_lost_is_pulled_anew_unless_the_policy_forbids_it(
    node: Node, policy: PullPolicy, status: TaskStatus
) -> None:
    lost = ImageError("there is no such manifest", ImageProblem.MISSING)
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
    engine: Any = FailingEngine(MemoryEngine(node.host), "ask_registry", lost)
    async with node.shim(engine) as daemon:
        found = await ended(daemon, "r2", registry_auth=ANNA, pull_policy=policy)
        assert found.status is status


ROGUE = "rogue:5000/mine:1"


@pytest.mark.parametrize("auth", [None, BEN])
async def test_a_registry_that_names_a_private_image_and_does_not_have_it_opens_it_to_nobody(
    node: Node, auth: RegistryAuth | None
) -> None:
    """The engine compares ids alone, and fetches nothing that the node has."""
    node.host.registry[ROGUE] = (IMAGE, None if auth is None else auth.password)
    node.host.liars.add(ROGUE)
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        refused = await ended(daemon, "r2", image=ROGUE, registry_auth=auth)
        assert (refused.reason, refused.container_id) == ("image_pull_failed", None)
        right = await ended(daemon, "r4", registry_auth=ANNA)
        assert right.status is TaskStatus.RUNNING
    async with node.shim() as daemon:
        never = {"image": ROGUE, "pull_policy": PullPolicy.NEVER, "registry_auth": auth}
        assert (await ended(daemon, "r5", **never)).reason == "image_pull_failed"


async def test_a_registry_that_has_the_same_image_gives_it_once_it_has_proved_that(
    node: Node,
) -> None:
    mirror = "mirror:5000/tool:1"
    node.host.registry[mirror] = (IMAGE, None)
    async with node.shim() as daemon:
        await ended(daemon, "r1", registry_auth=ANNA)
        assert (await ended(daemon, "r2", image=mirror)).status is TaskStatus.RUNNING
        assert node.host.log == [PULLED, f"pull {mirror}", f"prove {mirror}"]


async def test_a_private_pull_that_is_not_settled_yet_is_known_to_other_registries() -> None:
    world = World()
    await world.access.pull_begins(TOOL)
    assert not await world.access.must_prove("r2", ROGUE, IMAGE)
    world.host.local[TOOL] = IMAGE
    assert await world.access.must_prove("r2", ROGUE, IMAGE)
    own = msgspec.structs.replace(IMAGE, digest=None)
    assert not await world.access.must_prove("r2", "word:first", own), "the operator's own name"


class World:
    def __init__(self) -> None:
        self.host = MemoryHost()
        self.host.registry[TOOL] = (IMAGE, ANNA.password)
        self.engine = MemoryEngine(self.host)
        self.records: MemoryRecords[PrivateImage] = MemoryRecords()
        self.access = ImageAccess(self.engine, self.records)

    async def pull(self) -> None:
        await self.access.pull_begins(TOOL)
        self.host.local[TOOL] = IMAGE
        await self.access.pull_ended(TOOL)

    def must_ask(self, reference: str = TOOL, image: ImageInfo = IMAGE) -> bool:
        return self.access.must_ask("r2", reference, image)


async def test_another_tag_and_the_digest_of_the_same_repository_are_private_too() -> None:
    world = World()
    await world.pull()
    repository = "registry:5000/team/tool"
    assert world.must_ask(f"{repository}:other")
    assert world.must_ask(f"{repository}@sha256:d1")
    assert not world.must_ask("word:first"), "the operator's own name for it"
    assert not world.must_ask(image=ImageInfo(id="sha256:another"))


async def test_its_id_is_no_way_around_its_registry() -> None:
    world = World()
    await world.pull()
    by_id = msgspec.structs.replace(IMAGE, by_id=True)
    assert world.must_ask("sha256:tool", by_id)
    with pytest.raises(ImageError, match="name it as its registry does") as caught:
        await world.access.ask("r2", "sha256:tool", by_id, ANNA)
    assert caught.value.problem is ImageProblem.REFUSED


async def test_an_image_is_private_before_its_pull_is_known_to_have_ended() -> None:
    world = World()
    await world.access.pull_begins(TOOL)
    world.host.local[TOOL] = IMAGE
    assert world.must_ask()
    killed = World()
    killed.host, killed.records = world.host, world.records
    killed.access = ImageAccess(MemoryEngine(world.host), world.records)
    await killed.access.open()
    assert killed.must_ask()
    assert [record.image_id for record in world.records.kept.values()] == [IMAGE.id]


async def test_a_pull_that_brought_nothing_leaves_nothing_private() -> None:
    world = World()
    await world.access.pull_begins(TOOL)
    await world.access.pull_ended(TOOL)
    assert (world.records.kept, world.must_ask()) == ({}, False)


async def test_an_end_that_cannot_be_found_out_leaves_the_image_private() -> None:
    world = World()
    engine: Any = FailingEngine(world.engine, "local_image", EngineUnavailable("away"))
    await world.pull()
    later = ImageAccess(engine, world.records)
    await world.access.pull_begins("other:1")
    world.access = later
    with pytest.raises(EngineUnavailable):
        await later.open()
    assert world.must_ask()


async def test_an_image_whose_pull_cannot_be_noted_is_not_pulled() -> None:
    world = World()
    access = ImageAccess(world.engine, FailingRecords())
    with pytest.raises(OSError, match="No space left"):
        await access.pull_begins(TOOL)


async def test_an_image_that_is_gone_is_forgotten() -> None:
    world = World()
    await world.pull()
    await world.access.forget(IMAGE.id)
    assert (world.records.kept, world.must_ask()) == ({}, False)


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("busybox", "busybox"),
        ("docker.io/library/busybox:1", "busybox"),
        ("index.docker.io/team/tool@sha256:1", "team/tool"),
        ("registry:5000/team/tool:1", "registry:5000/team/tool"),
        ("registry:5000/tool", "registry:5000/tool"),
    ],
)
def test_a_repository_has_one_name(reference: str, repository: str) -> None:
    assert repository_of(reference) == repository
