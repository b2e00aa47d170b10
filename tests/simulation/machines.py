"""A world whose nodes are rented from a wayward provider, while the controller is killed.

The provider loses answers, hides new machines from its lists for up to 45 s, throttles, refuses for
want of capacity or quota, makes machines that never boot, takes spot machines back, most with a
notice, and for a while does not end any. At times nobody can ask it for its account. Now and then
the credentials are those of another account, which rents machines too, and knows only its own. What
both have is the truth that the records are compared with.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from common.links.errors import LinkError
from common.tokens import digest
from controller.clock import month_began
from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    Created,
    Described,
    KnownOffers,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.lifecycle.inventory import Budget, Fleet, MachinesPolicy
from controller.lifecycle.machines.life import IN_ACCOUNT, Place
from controller.lifecycle.machines.model import (
    Machine,
    MachineEnd,
    MachineStatus,
    Offer,
    Reach,
    attributes_of_offer,
    cost_between,
)
from controller.lifecycle.machines.reconcile import Found
from controller.lifecycle.model import (
    Attempt,
    Group,
    Job,
    JobSpec,
    Limits,
    Node,
    Resources,
    RunPolicy,
    RunState,
)
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.links.base import NodeConnection, NodeLink
from controller.machines import boot_data
from controller.machines.manager import MachineSettings
from controller.pipelines.renting.settings import Pinned
from controller.scheduling.fitting.constraints import unmet
from controller.store.base import Changes
from fairlead.model.needs import CreationPolicy, RentLimits, SpotPolicy
from fairlead.model.reasons import Reason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus
from shim.node.ledger import Capacity
from tests.simulation.controller import ControllerLife, WatchedStore
from tests.simulation.link import SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.people import until_answered
from tests.simulation.recalls import early_orders, kind_of, too_many
from tests.simulation.script import Script, Start, image_of
from tests.simulation.virtual import EPOCH, VirtualClock, VirtualLoop, seeded_chance
from tests.simulation.workload import GIB
from tests.simulation.world import Outcome, Scale, World, played

FAULTS_UNTIL = 2400.0
MOST, PER_HOUR = 12, 14.0
LARGE_GANG, TIGHT_ROOM = 8, 5
"""The ranks of a gang, and the machines of each zone in a world that has no room for it."""
_MONTHS = (None, None, None, 3.0, 8.0)
"""What all machines may cost in a month; most worlds have no such limit."""
FOREIGN = "i-foreign"
OURS, OTHER = "ours", "another"
DUPLICATE_SECONDS = 300.0
_LAG_SECONDS = 45.0
_ACCOUNT_EVERY, _ACCOUNT_AWAY = 500.0, 60.0
"""How often the account cannot be asked for, and for how long."""
_NEVER = 1e6
_NO_LIMITS = (RentLimits(),) * 4
_LIMITS = (
    RentLimits(spot_policy=SpotPolicy.ON_DEMAND),
    RentLimits(spot_policy=SpotPolicy.SPOT, idle_duration=20.0),
    RentLimits(max_price=1.0),
    RentLimits(availability_zones=("n2",)),
    RentLimits(creation_policy=CreationPolicy.REUSE),
)
T = TypeVar("T")


def simulate_machines(seed: int) -> Outcome:
    return played(lambda loop, folder: MachineWorld(seed, loop, folder), seed).outcome()


class Instance(msgspec.Struct):
    """A machine as it is. `ended_at`: when it stopped to exist, in virtual seconds."""

    id: str
    order: Order
    made_at: float
    visible_at: float
    account: str
    place: Place | None = None
    ending_at: float | None = None
    ended_at: float | None = None

    @property
    def is_there(self) -> bool:
        return self.ended_at is None


class WaywardCloud:
    """`spawn` makes tasks that outlive the controller that calls; `boots` and `ends` tell the world
    about a machine."""

    def __init__(
        self,
        chance: Random,
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        boots: Callable[[Instance], None],
        ends: Callable[[Instance], None],
    ) -> None:
        idempotent = chance.random() < 0.5
        self.abilities = Abilities(idempotent=idempotent, visible_after=60.0)
        self.instances: dict[str, Instance] = {}
        self.foreign_touched = False
        self.is_bad = True
        self.ends_nothing_until = 0.0
        self.uses = OURS
        """The account in which calls find and make their machines."""
        self.room: int | None = None
        """How many machines of an account each zone holds; None: as many as are asked for."""
        self._chance = chance
        self._now = now
        self._spawn = spawn
        self._boots = boots
        self._ends = ends
        spots = ((1.0, 4.0), (3.0, 8.0))
        self._offers = tuple(
            Offer(
                provider="wayward",
                instance_type=f"c{cpu:g}",
                region="north",
                zone=zone,
                spot=spot,
                price=price * (0.5 if spot else 1.0),
                cpu=cpu,
                memory=int(4 * cpu) * GIB,
                disk=100 * GIB,
            )
            for price, cpu in spots
            for zone in ("n1", "n2")
            for spot in (False, True)
        )

    @property
    def live(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.is_there]

    async def account(self) -> str | None:
        if self.is_bad and self._now() % _ACCOUNT_EVERY < _ACCOUNT_AWAY:
            raise CloudAway("no way to the account service")
        return self.uses

    async def offers(self) -> KnownOffers:
        await self._answered(self._weather())
        return KnownOffers(offers=self._offers)

    async def create(self, order: Order) -> Created:
        return await self._answered(self._create(order))

    async def _create(self, order: Order) -> Created:
        # Each request goes to the account whose credentials signed it.
        chance, account = self._chance, self.uses
        await asyncio.sleep(chance.uniform(0.2, 20.0))
        if self.abilities.idempotent:
            known = (one for one in self.instances.values() if one.account == account)
            same = [one for one in known if one.order.token == order.token]
            if same:
                assert same[0].order == order, "the same token came with another request"
                return Created(instance_id=same[0].id)
        roll = chance.random() if self.is_bad else 1.0
        if roll < 0.12 or self._is_full(account, order.offer.zone):
            raise NoCapacity(f"no {order.offer.instance_type} in {order.offer.zone}")
        if roll < 0.16:
            raise QuotaReached("vCPU limit")
        if roll < 0.22:
            raise Throttled("too many requests", 7.0)
        if roll < 0.30:
            raise CloudAway("503")
        if roll < 0.33:
            raise Unauthorized("not now")
        if roll < 0.35:
            # A subnet, or the image of the region, is away for some time.
            raise Refused("it is not there", Reach.ZONE if roll < 0.34 else Reach.REGION)
        made = self._make(order, account)
        if roll < 0.42:
            await asyncio.sleep(chance.uniform(0.0, 30.0))
            raise CloudAway("the answer was lost")
        return Created(instance_id=made.id)

    def _is_full(self, account: str, zone: str | None) -> bool:
        there = sum((one.account, one.order.offer.zone) == (account, zone) for one in self.live)
        return self.room is not None and there >= self.room

    def _make(self, order: Order, account: str) -> Instance:
        now = self._now()
        lag = self._chance.uniform(0.0, _LAG_SECONDS)
        made = Instance(
            id=f"i-{len(self.instances)}",
            order=order,
            made_at=now,
            visible_at=now + lag,
            account=account,
        )
        self.instances[made.id] = made
        if not (self.is_bad and self._chance.random() < 0.08):
            self._spawn(self._boot(made, self._chance.uniform(5.0, 90.0)))
        return made

    async def _boot(self, instance: Instance, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if instance.is_there and instance.ending_at is None:
            instance.place = Place(host=instance.id, socket=f"/run/{instance.order.name}")
            self._boots(instance)

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        account = self.uses
        await self._answered(self._weather())
        known = [one for one in self._visible(account) if one.id in instance_ids]
        return {one.id: Described(place=one.place) for one in known}

    async def terminate(self, instance_id: str) -> bool:
        return await self._answered(self._terminate(instance_id))

    async def _terminate(self, instance_id: str) -> bool:
        account = self.uses
        if instance_id == FOREIGN:
            self.foreign_touched = True
        await self._weather()
        if self._now() < self.ends_nothing_until:
            raise CloudAway("500")
        instance = self.instances[instance_id]
        if instance.account != account:
            return True  # It knows no such machine.
        if instance.is_there and instance.ending_at is None:
            instance.ending_at = self._now()
            self._spawn(self._shut_down(instance))
        return not instance.is_there

    async def _shut_down(self, instance: Instance) -> None:
        await asyncio.sleep(self._chance.uniform(1.0, 40.0))
        self.lose(instance)

    def lose(self, instance: Instance) -> None:
        """It is gone from now on."""
        if instance.is_there:
            instance.ended_at = self._now()
            self._ends(instance)

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        account = self.uses
        await self._answered(self._weather())
        return [
            Found(
                instance_id=one.id,
                machine_id=one.order.machine_id,
                created_at=EPOCH + one.made_at,
                place=one.place,
            )
            for one in self._visible(account)
            if one.order.installation == installation
        ]

    def _visible(self, account: str) -> list[Instance]:
        there = (one for one in self.live if one.account == account)
        return [one for one in there if one.visible_at <= self._now()]

    async def console(self, instance_id: str) -> str | None:
        return None

    async def _weather(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.05, 3.0))
        if self.is_bad and self._chance.random() < 0.15:
            raise CloudAway("a page is missing")

    async def _answered(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work at the provider, where the end of the caller does not reach it."""

        async def outcome() -> T | CloudError:
            try:
                return await work
            except CloudError as error:
                return error

        told = await asyncio.shield(self._spawn(outcome()))
        if isinstance(told, CloudError):
            raise told
        answer: T = told
        return answer


def _is_hopeless(spec: JobSpec) -> bool:
    """Return whether none of the provider's offers would do: those of 8 cores cost more."""
    limit = spec.rent.max_price
    return limit is not None and limit <= 1.0 and spec.resources.cpu > 4.0


def _sent_key(machine_id: str) -> str:
    """Return the host key of the machine's user-data."""
    return boot_data.host_key(b"user-data", machine_id)[1]


def _own_key(machine_id: str) -> str:
    """Return the key that the machine makes itself."""
    return boot_data.host_key(b"its own", machine_id)[1]


class _NowhereLink:
    async def connect(self) -> NodeConnection:
        raise LinkError("no route to host")


class _MachineStore(WatchedStore):
    """`watch` sees each commit."""

    watch: Callable[[Changes], None]

    def seen(self, changes: Changes) -> None:
        super().seen(changes)
        self.watch(changes)


class MachineWorld(World):
    """A fleet without any node of its own."""

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path) -> None:
        super().__init__(seed, Scale(), loop, folder)
        self.cloud = WaywardCloud(
            self.chance("cloud"), loop.time, self.spawn, self._boot, self._end
        )
        self.ended_idle: list[str] = []
        self._folder_of_logs = folder
        self._machines: dict[str, Machine] = {}
        self._doubles: dict[str, float] = {}
        self._taken_back: set[str] = set()
        self.early: Counter[str] = Counter()
        """Commits that ordered for a gang, or for jobs alone, that still stopped by a recall."""
        self._must_fail: set[str] = set()
        self._may_fail: set[str] = set()
        placement = self.chance("placement").choice((None, "zone"))
        self._per_month = self.chance("month").choice(_MONTHS)
        # A fleet whose month is used up keeps no machine.
        least = 0 if self._per_month else self.chance("least").choice((0, 0, 1))
        if self.chance("room").random() < 0.45:
            self.cloud.room = TIGHT_ROOM
        policy = MachinesPolicy(
            provider="wayward", min=least, max=MOST, idle_duration=60.0, boot_limit=400.0
        )
        burst = Fleet(
            name="fleet",
            placement=placement,
            machines=policy,
            budget=Budget(per_hour=PER_HOUR, per_month=self._per_month),
            created_at=EPOCH,
        )
        self.fleets = [burst]

    async def story(self) -> None:
        chance = self.chance("story")
        await self.rivals.start()
        await self.admin.register_fleets()
        users = [self.spawn(self._submit(n)) for n in range(chance.randint(3, 14))]
        if self.cloud.room is not None:
            users.append(self.spawn(self._submit_a_gang_too_large()))
        wrongs = (self._kill(), self._take_back(), self._stall(), self._go_elsewhere())
        faults = [self.spawn(one) for one in wrongs]
        watch = self.spawn(self._watch())
        await asyncio.sleep(FAULTS_UNTIL)
        for fault in faults:
            fault.cancel()
        await asyncio.gather(*faults, return_exceptions=True)
        self.store_weather.clear_up()
        self.rivals.end_the_superseded()
        self.cloud.is_bad = False
        self.cloud.ends_nothing_until = 0.0
        repair = self.spawn(self._go_back())
        await asyncio.gather(*users)
        await self.settle()
        await self._give_back()
        watch.cancel()
        repair.cancel()

    # -- users --------------------------------------------------------------------------------

    async def _submit(self, number: int) -> None:
        chance = self.chance(f"run {number}")
        await asyncio.sleep(chance.uniform(0.0, FAULTS_UNTIL * 0.8))
        state = self._run(f"run-{number}", chance)
        await until_answered(self, lambda pipeline: self._admit(pipeline, state))

    async def _submit_a_gang_too_large(self) -> None:
        """It gets nothing, and what came for it is given back. Only machines of two zones that came
        for others hold it, where the fleet's file lets a gang be in several."""
        chance = self.chance("large gang")
        await asyncio.sleep(chance.uniform(0.0, FAULTS_UNTIL * 0.5))
        script = Script(seconds=10.0, lines=2, line_bytes=10)
        alone = Resources(cpu=1.0, memory=GIB, whole_node=True)
        spec = JobSpec(image=image_of(Start.FINE), env=script.env(), resources=alone)
        group = Group(name="main", nodes=LARGE_GANG, gang_size=LARGE_GANG)
        state = new_run(
            name="large-gang",
            user="ada",
            groups=[PlannedGroup(group=group, spec=spec)],
            now=self.clock.now(),
            new_id=seeded_chance(chance).new_id,
            policy=RunPolicy(priority=100),
        )
        strict = self.fleets[0].placement is not None
        (self._must_fail if strict else self._may_fail).add("large-gang")
        await until_answered(self, lambda pipeline: self._admit(pipeline, state))

    async def _admit(self, pipeline: Any, state: RunState) -> None:
        if state.run.id not in self.database.runs:
            await pipeline.admit(state)

    def _run(self, name: str, chance: Random) -> RunState:
        script = Script(seconds=chance.uniform(1.0, 300.0), lines=2, line_bytes=10)
        spec = JobSpec(
            image=image_of(Start.FINE),
            env=script.env(),
            resources=Resources(cpu=chance.choice((0.5, 1.0, 4.0, 8.0)), memory=GIB),
        )
        now, new_id = self.clock.now(), seeded_chance(chance).new_id
        rent = chance.choice((*_NO_LIMITS, *_LIMITS))
        spec = msgspec.structs.replace(spec, rent=rent)
        hopeless = _is_hopeless(spec)
        may_end = hopeless or not rent.buys or self._per_month is not None
        limits = Limits() if may_end else Limits(no_capacity=_NEVER)
        policy = RunPolicy(limits=limits)
        if not rent.buys or self._per_month is not None:
            self._may_fail.add(name)
        if rent.buys and hopeless:
            self._must_fail.add(name)
            jobs = [PlannedJob(cookie=0, replica=0, spec=spec)]
            return new_run(name=name, user="ada", jobs=jobs, now=now, new_id=new_id, policy=policy)
        if chance.random() < 0.35:
            size = chance.choice((2, 3, 5))
            whole = msgspec.structs.replace(
                spec, resources=Resources(cpu=1.0, memory=GIB, whole_node=True)
            )
            group = Group(name="main", nodes=size, gang_size=size)
            groups = [PlannedGroup(group=group, spec=whole)]
            return new_run(
                name=name, user="ada", groups=groups, now=now, new_id=new_id, policy=policy
            )
        jobs = [PlannedJob(cookie=n, replica=n, spec=spec) for n in range(chance.randint(1, 6))]
        return new_run(name=name, user="ada", jobs=jobs, now=now, new_id=new_id, policy=policy)

    # -- faults -------------------------------------------------------------------------------

    async def _kill(self) -> None:
        chance = self.chance("kills")
        while True:
            await asyncio.sleep(chance.uniform(1.0, 120.0))
            if chance.random() < 0.7:
                await self.rivals.kill_at_step(chance.randint(1, 60), chance.uniform(0.1, 30.0))
            else:
                await self.rivals.kill(chance.uniform(0.1, 200.0), gently=chance.random() < 0.3)

    async def _take_back(self) -> None:
        chance = self.chance("spot")
        while True:
            await asyncio.sleep(chance.uniform(60.0, 400.0))
            up = [one for one in self.cloud.live if one.place is not None]
            busy = [one for one in up if self.nodes[one.order.name].containers()]
            up = busy if busy and chance.random() < 0.8 else up
            if not up:
                continue
            # Two at once may be of the same gang, also one after the other while it stops.
            for one in chance.sample(up, min(len(up), chance.choice((1, 1, 2)))):
                self._taken_back.add(one.order.machine_id)
                if chance.random() < 0.3:
                    self.cloud.lose(one)
                else:
                    await asyncio.sleep(chance.uniform(0.0, 5.0))
                    self.spawn(self._recall(one, chance.choice((30.0, 120.0))))

    async def _recall(self, instance: Instance, seconds: float) -> None:
        self.nodes[instance.order.name].recall(self.clock.now() + seconds)
        await asyncio.sleep(seconds)
        self.cloud.lose(instance)

    async def _go_elsewhere(self) -> None:
        """Have calls go to another account for a while."""
        chance = self.chance("elsewhere")
        if chance.random() < 0.5:
            return
        for _ in range(chance.randint(1, 4)):
            await asyncio.sleep(chance.uniform(0.0, FAULTS_UNTIL * 0.3))
            self.cloud.uses = OTHER
            await asyncio.sleep(chance.choice((3.0, 30.0, 300.0)))
            self.cloud.uses = OURS

    async def _go_back(self) -> None:
        """Do as each message says: go back to the account of a machine until it has ended."""
        while True:
            told = [
                one for one in self._live_records() if (one.trouble or "").startswith(IN_ACCOUNT)
            ]
            if told and told[0].account is not None:
                self.cloud.uses = told[0].account
            await asyncio.sleep(120.0)

    async def _stall(self) -> None:
        """For a while the provider ends nothing."""
        chance = self.chance("stall")
        await asyncio.sleep(chance.uniform(0.0, FAULTS_UNTIL))
        self.cloud.ends_nothing_until = self.loop.time() + chance.choice((60.0, 1200.0))

    # -- machines -----------------------------------------------------------------------------

    def _boot(self, instance: Instance) -> None:
        order = instance.order
        capacity = Capacity(cpu=order.offer.cpu, memory=order.offer.memory, disk=order.offer.disk)
        node = SimulatedNode(
            order.name,
            capacity,
            (),
            VirtualClock(self.loop),
            self.chance(order.name),
            self.spawn,
            self.checks,
        )
        node.boot_with(_sent_key(order.machine_id), partial(_own_key, order.machine_id))
        self.nodes[order.name] = node
        self.checks.node_ids[order.name] = order.machine_id
        self.checks.names[order.machine_id] = order.name
        # Its life ends when it is given back, so a silence of it is nobody's fault.
        self.checks.unreliable.add(order.name)

    def _end(self, instance: Instance) -> None:
        node = self.nodes.get(instance.order.name)
        if node is None:
            return
        record = self.database.machines.get(instance.order.machine_id)
        ended_idle = record is not None and record.end is MachineEnd.IDLE
        if ended_idle and instance.order.machine_id not in self._taken_back:
            for info, _ in node.containers():
                self.checks.violated(f"{info.id} ran on {node.name}, which ended as idle")
            self._check_host_key(instance.order.machine_id)
        node.power_off()
        node.wipe()

    def _check_host_key(self, machine_id: str) -> None:
        """A machine that was there without faults has a key that only it knows."""
        record, node = self.database.machines[machine_id], self.database.nodes.get(machine_id)
        if node is None or (record.joined_at or 0.0) < EPOCH + FAULTS_UNTIL:
            return
        if (node.address.host_key, node.address.next_host_key) != (_own_key(machine_id), None):
            self.checks.violated(f"{node.name} ended as idle, with the host key of its user-data")

    def _link(self, node: Node) -> NodeLink:
        there = self.nodes.get(node.name)
        if there is None:
            return _NowhereLink()
        if not there.presents(node.address):
            self.checks.violated(f"{node.name} has another host key than {node.address}")
        return SimulatedLink(there, node.address)

    def _settings(self) -> MachineSettings:
        return MachineSettings(
            clouds={"wayward": self.cloud},
            boot_data=lambda machine: f"#cloud-config\n# {machine.name}\n",
            pin=lambda machine_id: Pinned(
                host_key=_sent_key(machine_id), token_digest=digest(machine_id)
            ),
        )

    async def _begin_controller(self) -> ControllerLife:
        number = len(self.rivals.lives) + 1
        self.checks.succeeded_at = self.loop.time()
        controller = ControllerLife(number, self.loop, self._controller_failed)
        store = _MachineStore(
            self.database,
            self.checks,
            self.chance(f"store {number}"),
            self.store_weather,
            self.clock,
        )
        store.watch = self._committed
        chance = seeded_chance(self.chance(f"controller {number}"))
        await controller.start(
            store,
            self._folder_of_logs,
            self.clock,
            chance,
            self._link,
            self._gateway_link,
            self._settings(),
        )
        return controller

    # -- what must hold -----------------------------------------------------------------------

    def _committed(self, changes: Changes) -> None:
        ordered = [one for key, one in changes.machines.items() if key not in self._machines]
        self._machines |= changes.machines
        for run_id, machines in early_orders(ordered, self.database.runs).items():
            state = self.database.runs[run_id]
            self.early[kind_of(state)] += 1
            wrong = too_many(state, machines, self.database.nodes)
            if wrong is not None:
                self.checks.violated(f"{state.run.name}: {wrong}")
        if ordered and self._per_month is not None:
            self._check_month(max(one.ordered_at for one in ordered), self._per_month)
        for one in changes.machines.values():
            self._check_gone(one)
        live = [one for one in self._machines.values() if one.is_live]
        price = sum(one.offer.price for one in live)
        if len(live) > MOST:
            self.checks.violated(f"{len(live)} machines are live of {MOST}")
        if price > PER_HOUR + 1e-6:
            self.checks.violated(f"the machines cost {price} an hour of {PER_HOUR}")

    def _check_gone(self, machine: Machine) -> None:
        """Nobody looks for a machine any more whose record says that it is gone."""
        instance = self.cloud.instances.get(machine.instance_id or "")
        gone = machine.status is MachineStatus.TERMINATED
        if gone and instance is not None and instance.is_there:
            where = f"{instance.id} is there, in the account {instance.account}"
            self.checks.violated(f"the record of {machine.name} is terminated, and {where}")

    def _check_month(self, now: float, most: float) -> None:
        """An order leaves room for an hour of everything, the longest step of a bill."""
        began, every = month_began(now), self._machines.values()
        spent = sum(cost_between(one, began, now) for one in every)
        soon = spent + sum(one.offer.price for one in every if one.is_live)
        if soon > most + 1e-6:
            self.checks.violated(f"an order brings the month to {soon:.2f} of {most:g}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._look_for_doubles()

    def _look_for_doubles(self) -> None:
        by_machine: dict[str, list[Instance]] = {}
        for one in self.cloud.live:
            by_machine.setdefault(one.order.machine_id, []).append(one)
        doubles = {name for name, found in by_machine.items() if len(found) > 1}
        now = self.loop.time()
        self._doubles = {name: self._doubles.get(name, now) for name in doubles}
        for name, since in self._doubles.items():
            if self.cloud.abilities.idempotent:
                self.checks.violated(f"{name} has two machines")
            elif now - since > DUPLICATE_SECONDS and now > FAULTS_UNTIL + DUPLICATE_SECONDS:
                self.checks.violated(f"{name} has two machines for {now - since:.0f} s")

    async def _give_back(self) -> None:
        """Everything ends once nothing uses it, but for what the fleet keeps."""
        least = self.fleets[0].machines.min if self.fleets[0].machines is not None else 0
        patience = self.loop.time() + 3600.0
        while self.loop.time() < patience:
            left = self.cloud.live
            if len(left) == least and len(self._live_records()) == least:
                break
            await asyncio.sleep(5.0)
        else:
            self.checks.violated(f"{len(left)} machines are left of {least}: {left}")
        if self.cloud.foreign_touched:
            self.checks.violated("a machine of another installation was ended")
        self._check_ends()

    def _live_records(self) -> list[Machine]:
        return [one for one in self.database.machines.values() if one.is_live]

    def _check_ends(self) -> None:
        """No job pays for a machine that was given back."""
        for state in self.database.runs.values():
            for job in state.jobs:
                for attempt in job.attempts:
                    lost = attempt.reason in (
                        Reason.INSTANCE_UNREACHABLE,
                        Reason.INTERRUPTED_BY_NO_CAPACITY,
                    )
                    if lost and attempt.node_id not in self._taken_back:
                        self.checks.violated(f"{attempt.id} lost a machine that was never lost")
                    self._check_limits(job, attempt)
                if job.attempts:
                    self._check_end(state.run.name, job.attempts[-1])
            if state.run.name == "large-gang":
                self._check_zones(state)

    def _check_limits(self, job: Job, attempt: Attempt) -> None:
        """A job was on no machine that its run does not allow."""
        machine = self._machines.get(attempt.node_id or "")
        if machine is None:
            return
        broken = unmet(job.spec.rent.constraints(), attributes_of_offer(machine.offer))
        if broken is not None:
            self.checks.violated(f"{attempt.id} was on {machine.offer.words()}: {broken}")

    def _check_zones(self, state: RunState) -> None:
        last = [job.attempts[-1] for job in state.jobs if job.attempts]
        machines = [self._machines[one.node_id] for one in last if one.node_id in self._machines]
        if machines and len({one.offer.zone for one in machines}) == 1:
            self.checks.violated(f"{state.run.name} was in one zone, which has no room for it")

    def _check_end(self, run: str, last: Attempt) -> None:
        found_none = last.reason is Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY
        if run in self._must_fail and not found_none:
            self.checks.violated(f"{last.id} of {run} ended as {last.reason}, and nothing fits it")
        elif last.status is not AttemptStatus.DONE and not (
            found_none and run in self._must_fail | self._may_fail
        ):
            self.checks.violated(f"{last.id} of {run} was not done: {last.reason}")
