"""The provider: offers, machines and examination of Compute Engine.

A machine's id is `ZONE/NAME`. Its name has a part of the order's token, so it is unique: a second
request is refused because of its name once Compute Engine has forgotten the request's id, which it
does after an hour.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from controller.clouds.base import (
    Abilities,
    Accepted,
    CloudAway,
    CloudError,
    Created,
    Described,
    Examined,
    KnownOffers,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    each_region,
    keep_reading,
    known_of,
    open_to_others,
)
from controller.clouds.catalog import Catalog, MachineType, Reading, completed, with_older
from controller.clouds.gcp.answers import (
    AllowedPermissions,
    Image,
    Instance,
    Instances,
    MachineTypes,
    Nothing,
    Operation,
    Page,
    RegionQuotas,
    SerialOutput,
    require_whole,
    traits_of,
)
from controller.clouds.gcp.calls import Calls
from controller.clouds.gcp.errors import NameTaken, NotThere, failure, named
from controller.clouds.gcp.examination import IAM_URL, Examination
from controller.clouds.gcp.order import (
    FLEET_LABEL,
    INSTALLATION_LABEL,
    MACHINE_LABEL,
    name_of,
    request_for,
)
from controller.clouds.gcp.prices import SKUS_PATH, PriceList, Sku, Skus
from controller.clouds.gcp.types import TypeInfo, machine_type
from controller.clouds.pace import Pace
from controller.clouds.sizes import disk_for_jobs, memory_for_jobs
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, Reach
from controller.lifecycle.machines.reconcile import Found
from controller.provider_config.gcp import GcpProvider, GcpRegion

MAX_USER_DATA = 256 << 10
DESCRIBE_EVERY_SECONDS = 5.0
"""The least time between two lists of machines: one has all zones of the project."""
TYPES_EVERY_SECONDS = 3600.0
VISIBLE_AFTER_SECONDS = 60.0
PERMISSIONS = (
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.images.get",
    "compute.images.getFromFamily",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.machineTypes.list",
    "compute.regions.get",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
)
"""All that is needed in the project."""
CHECKED_WITH = ("compute.firewalls.list", "compute.subnetworks.get")
"""What a check reads besides; `examples/machines/gcp-role.yaml` has both."""
_PROJECTS_URL = "https://cloudresourcemanager.googleapis.com"
_BILLING_URL = "https://cloudbilling.googleapis.com"
_NAMESPACE = uuid.UUID("5f2d6a1e-6c0f-4f43-9a42-0c7a3f6f5d5b")
_PER_PAGE = "500"
_GIB = 1 << 30
_CONSOLE_TAIL = 64 << 10
_ENDING = frozenset({"DEPROVISIONING", "PENDING_STOP", "STOPPING"})
"""The statuses of a machine that is used no more. One that is off still exists, and so its disk."""
_WITH_PLACE = frozenset({"PROVISIONING", "STAGING", "RUNNING", "REPAIRING"})


T = TypeVar("T")
P = TypeVar("P", bound=Page)


class GcpCloud:
    """Compute Engine in the regions of `config`. `describe_every`: seconds."""

    def __init__(
        self,
        name: str,
        config: GcpProvider,
        *,
        catalog: Catalog | None = None,
        describe_every: float = DESCRIBE_EVERY_SECONDS,
        projects_url: str = _PROJECTS_URL,
        billing_url: str = _BILLING_URL,
        iam_url: str = IAM_URL,
    ) -> None:
        self.abilities = Abilities(idempotent=True, visible_after=VISIBLE_AFTER_SECONDS)
        self._name = name
        self._config = config
        self.catalog = catalog or Catalog("gcp")
        self._projects_url, self._billing_url = projects_url, billing_url
        self._iam_url = iam_url
        self._calls = Calls(name, config)
        self._pace = Pace(describe_every)
        self._types: dict[str, tuple[float, list[TypeInfo]]] = {}

    async def close(self) -> None:
        await self._calls.close()

    # -- offers -----------------------------------------------------------------------------

    async def account(self) -> str:
        return self._config.project

    async def offers(self) -> KnownOffers:
        prices = {one.name: one for one in self.catalog.types()}
        regions = {zone: region for region, zone in self._zones()}

        async def of(zone: str) -> list[Offer]:
            kinds = filter(None, map(machine_type, await self._types_in(zone)))
            return [
                offer
                for kind in kinds
                for offer in self._offers_of(kind, regions[zone], zone, prices.get(kind.name))
            ]

        return (await known_of(regions, of)).at(self._config.rate)

    def _zones(self) -> Iterable[tuple[str, str]]:
        for region, where in self._config.regions.items():
            for zone in where.zones:
                yield region, zone

    async def _types_in(self, zone: str) -> list[TypeInfo]:
        now = asyncio.get_running_loop().time()
        if (known := self._types.get(zone)) is not None and now < known[0]:
            return known[1]
        asked = {
            "fields": "items(name,guestCpus,memoryMb,isSharedCpu,accelerators,architecture,"
            "deprecated,bundledLocalSsds),nextPageToken,warning"
        }
        try:
            pages = await self._pages(MachineTypes, f"zones/{zone}/machineTypes", asked)
        except (Refused, NotThere) as error:
            region = next(region for region, one in self._zones() if one == zone)
            field = f"providers.{self._name}.regions.{region}.zones"
            raise Refused(f"{field}: {error}", Reach.ZONE) from None
        types = [one for page in pages for one in page.items]
        self._types[zone] = (now + TYPES_EVERY_SECONDS, types)
        return types

    def _offers_of(
        self, kind: MachineType, region: str, zone: str, known: MachineType | None
    ) -> Iterable[Offer]:
        price = self._config.prices.get(kind.name)
        if price is None and known is not None:
            price = known.prices.get(region)
        if price is None:
            return
        on_demand = Offer(
            provider=self._name,
            instance_type=kind.name,
            region=region,
            zone=zone,
            price=price,
            cpu=kind.cpu,
            memory=memory_for_jobs(kind.memory),
            disk=disk_for_jobs(self._config.disk),
            gpus=kind.gpus,
        )
        yield on_demand
        # How much less a spot machine costs, only the price list of Cloud Billing tells.
        spot = price if known is None else known.spot.get(region, price)
        yield msgspec.structs.replace(on_demand, spot=True, price=min(price, spot))

    async def refresh(self) -> None:
        self._types.clear()
        answers, refused = await each_region(self._config.regions, self._types_by_zone)
        infos: dict[str, TypeInfo] = {}
        zones: dict[str, dict[str, tuple[str, ...]]] = {}
        for region, by_zone in answers.items():
            for zone, there in by_zone.items():
                for one in there:
                    infos[one.name] = one
                    known = zones.setdefault(one.name, {})
                    known[region] = (*known.get(region, ()), zone)
        prices = PriceList(await self._skus())
        found = [
            msgspec.structs.replace(
                kind,
                prices=_priced(prices, one, zones[one.name], spot=False),
                spot=_priced(prices, one, zones[one.name], spot=True),
                zones=zones[one.name],
            )
            for one in infos.values()
            if (kind := machine_type(one)) is not None
        ]
        regions = tuple(answers)
        types, notes = completed(found, self.catalog.begun(regions), regions, self._config.prices)
        reading = Reading(read_at=time.time(), regions=regions, types=types, notes=notes)
        await keep_reading(self.catalog, with_older(reading, self.catalog.reading, refused))

    async def _types_by_zone(self, region: str) -> dict[str, list[TypeInfo]]:
        """Return the types in each zone of the region."""
        return {zone: await self._types_in(zone) for zone in self._config.regions[region].zones}

    async def _skus(self) -> list[Sku]:
        skus: list[Sku] = []
        token: str | None = None
        # Cloud Billing ends its pages with an empty token.
        while token != "":
            asked = {} if token is None else {"pageToken": token}
            url = f"{self._billing_url}/{SKUS_PATH}"
            page = await self._calls.call(Skus, "GET", url, asked)
            skus += page.skus
            token = page.next_page_token
        return skus

    # -- machines ---------------------------------------------------------------------------

    async def create(self, order: Order) -> Created | Accepted:
        offer = order.offer
        where = self._config.regions.get(offer.region)
        if where is None or offer.zone not in where.zones:
            location = offer.zone or offer.region
            message = f"providers.{self._name}.regions does not name {location}"
            raise Refused(message, Reach.ZONE)
        size = len(order.user_data.encode())
        if size > MAX_USER_DATA:
            raise Refused(f"the user-data has {size} bytes, and Google takes {MAX_USER_DATA}")
        try:
            operation = await self._begin(order, where)
        # The answer to an earlier order may have been lost: the machine of this name is looked at.
        except (NameTaken, NoCapacity, QuotaReached, Refused) as error:
            return await self._made_before(order, named(error, self._name, offer.region))
        return Accepted(outcome=partial(self._outcome, order, operation))

    async def _outcome(self, order: Order, operation: Operation) -> Created:
        zone, what = str(order.offer.zone), f"making {name_of(order)} in {order.offer.zone}"
        operation = await self._until_done(zone, operation)
        if operation.error is not None:
            refusal, may_be_there = failure(what, operation.error.errors)
            refusal = named(refusal, self._name, order.offer.region)
            if may_be_there:
                return await self._made_before(order, refusal)
            # What is still seen of the machine is on its way out.
            raise refusal
        if operation.status != "DONE":
            raise CloudAway(f"{what} takes long")
        try:
            instance = await self._instance(zone, name_of(order))
        except NotThere:
            # A known request id tells the operation that made it, also after its end.
            raise Refused(f"the machine of this order, {name_of(order)}, has ended") from None
        return self._created(zone, instance)

    async def _begin(self, order: Order, where: GcpRegion) -> Operation:
        path = f"zones/{order.offer.zone}/instances"
        # For an hour a known id makes no second machine and tells the first one's operation.
        asked = {"requestId": str(uuid.uuid5(_NAMESPACE, order.token))}
        request = request_for(order, self._config, where)
        try:
            return await self._call(Operation, "POST", path, asked, request)
        except NotThere as error:
            # The image, type, subnetwork or account that is named in the controller's file.
            raise Refused(str(error)) from None

    async def _until_done(self, zone: str, operation: Operation) -> Operation:
        """Return the operation when it is done, or after 2 minutes, as their API has it."""
        if operation.status == "DONE":
            return operation
        return await self._call(Operation, "POST", f"zones/{zone}/operations/{operation.name}/wait")

    async def _made_before(self, order: Order, refusal: CloudError) -> Created:
        """Return the machine that an earlier call of this order made.

        Raises the refusal if there is none: also a refusal that is not about the name may come
        after a call that made the machine.
        """
        zone = str(order.offer.zone)
        try:
            instance = await self._instance(zone, name_of(order))
        except NotThere:
            raise refusal from None
        labels = instance.labels
        owner = (labels.get(INSTALLATION_LABEL), labels.get(MACHINE_LABEL))
        if owner != (order.installation, order.machine_id):
            raise Refused(f"an instance of another owner has the name {instance.name}")
        if instance.status in _ENDING or instance.status == "TERMINATED":
            raise Refused(f"the machine of this order, {instance.name}, has ended already")
        return self._created(zone, instance)

    async def _instance(self, zone: str, name: str) -> Instance:
        return await self._call(Instance, "GET", f"zones/{zone}/instances/{name}")

    def _created(self, zone: str, instance: Instance) -> Created:
        return Created(instance_id=f"{zone}/{instance.name}", place=self._place(instance))

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        wanted = set(instance_ids)
        return {
            instance_id: Described(place=self._place(one))
            for instance_id, one in await self._instances(f"labels.{MACHINE_LABEL}:*")
            if instance_id in wanted
        }

    async def terminate(self, instance_id: str) -> bool:
        zone, name = self._split(instance_id)
        try:
            await self._call(Nothing, "DELETE", f"zones/{zone}/instances/{name}")
        # An earlier call deleted it, or its owner did: there is nothing to pay for.
        except NotThere:
            return True
        return False

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        return [
            Found(
                instance_id=instance_id,
                machine_id=one.labels.get(MACHINE_LABEL),
                fleet=one.labels.get(FLEET_LABEL),
                created_at=one.creation_timestamp.timestamp(),
                place=self._place(one),
                traits=traits_of(instance_id.partition("/")[0], one),
            )
            for instance_id, one in await self._instances(
                # Without quotes, an id such as 12e4567890123456 would be a number.
                f'labels.{INSTALLATION_LABEL}="{installation}"'
            )
        ]

    async def _instances(self, chosen: str) -> list[tuple[str, Instance]]:
        """Return all machines of the regions that the filter chooses, by their ids."""
        async with self._pace.turn():
            pages = await self._pages(Instances, "aggregated/instances", {"filter": chosen})
        found = []
        for page in pages:
            for scope, content in page.items.items():
                zone = scope.removeprefix("zones/")
                # Also a zone that the controller's file names no more may still have some.
                if zone.rpartition("-")[0] in self._config.regions:
                    require_whole(content.warning, scope)
                    found += [(f"{zone}/{one.name}", one) for one in content.instances]
        return [(name, one) for name, one in found if one.status not in _ENDING]

    async def console(self, instance_id: str) -> str | None:
        zone, name = self._split(instance_id)
        path = f"zones/{zone}/instances/{name}/serialPort"
        # A negative start counts from the end.
        asked = {"port": "1", "start": str(-_CONSOLE_TAIL)}
        try:
            return (await self._call(SerialOutput, "GET", path, asked)).contents or None
        except (NotThere, Refused):
            # One that is only being made has none, and that is told as a bad request.
            return None

    # -- examining --------------------------------------------------------------------------

    async def examine(self) -> Sequence[Examined]:
        found = open_to_others(self._name, "credentials_file", self._config.credentials_file)
        found += [await self._rights(), await self._image_there(), *await self._unknown_prices()]
        examination = Examination(self._name, self._config, self._calls, self._iam_url)
        found += await examination.service_account()
        for region, where in self._config.regions.items():
            found += await examination.subnetwork(region)
            found += await self._never_rented(region, where)
            found += await self._quotas(region)
        return found

    async def _rights(self) -> Examined:
        what = "permissions in the project"
        url = f"{self._projects_url}/v1/projects/{self._config.project}:testIamPermissions"
        try:
            content = {"permissions": [*PERMISSIONS, *CHECKED_WITH]}
            allowed = await self._calls.call(AllowedPermissions, "POST", url, content=content)
        except CloudError as error:
            return Examined(what=what, note=f"not known: {error}")
        if missing := sorted(set(PERMISSIONS) - set(allowed.permissions)):
            fault = f"{', '.join(missing)}: give its account a role with them"
            return Examined(what=what, fault=fault)
        if missing := sorted(set(CHECKED_WITH) - set(allowed.permissions)):
            note = f"{', '.join(missing)}: without them, this check sees less; machines need none"
            return Examined(what=what, note=note)
        return Examined(what=what)

    async def _image_there(self) -> Examined:
        image = self._config.image
        try:
            url = f"{self._config.endpoint}/compute/v1/{image}"
            found = await self._calls.call(Image, "GET", url)
        except CloudError as error:
            fault = f"providers.{self._name}.image: {error}"
            return Examined(what=f"image {image}", fault=fault)
        if int(found.disk_size_gb) * _GIB > self._config.disk:
            fault = f"providers.{self._name}.disk: the image needs {found.disk_size_gb}GiB"
            return Examined(what=f"image {image}", fault=fault)
        return Examined(what=f"image {image}")

    async def _never_rented(self, region: str, where: GcpRegion) -> list[Examined]:
        """Return what the controller's file names in vain."""
        known = await self.offers()
        offered = {one.zone for one in known.offers} | known.unknown.keys()
        field = f"providers.{self._name}"
        fault = (
            f"{field}.regions.{region}: the catalog has no price of a type that is there: run "
            f"`fairlead offers refresh {self._name}`, or give prices in {field}.prices"
        )
        return [
            Examined(what=f"offers in {zone}", fault=fault)
            for zone in where.zones
            if zone not in offered
        ]

    async def _unknown_prices(self) -> list[Examined]:
        types = []
        for _, zone in self._zones():
            try:
                types += [one.name for one in await self._types_in(zone)]
            except CloudError:
                return []  # The unknown zone may have it.
        return [
            Examined(
                what=f"price of {name}",
                fault=f"providers.{self._name}.prices.{name}: no zone has such a type",
            )
            for name in sorted(self._config.prices.keys() - set(types))
        ]

    async def _quotas(self, region: str) -> list[Examined]:
        """Return the quotas of the region that limit what is offered there."""
        what = f"quotas in {region}"
        try:
            answer = await self._call(RegionQuotas, "GET", f"regions/{region}")
        except CloudError as error:
            return [Examined(what=what, note=f"not known: {error}")]
        found = []
        for one in answer.quotas:
            if one.metric in ("CPUS", "PREEMPTIBLE_CPUS") or (
                "NVIDIA" in one.metric and one.metric.endswith("_GPUS") and _is_own(one.metric)
            ):
                name = f"quota {one.metric} in {region}"
                if one.limit > 0:
                    found.append(Examined(what=f"{name}: {one.usage:g} of {one.limit:g} used"))
                else:
                    found.append(Examined(what=name, note="none until Google raises it from 0"))
        return found

    # -- the API ----------------------------------------------------------------------------

    def _split(self, instance_id: str) -> tuple[str, str]:
        """Raises CloudAway for a machine in a zone that the controller's file does not name."""
        zone, _, name = instance_id.partition("/")
        if zone.rpartition("-")[0] not in self._config.regions:
            raise CloudAway(f"providers.{self._name}.regions does not name {zone}")
        return zone, name

    def _place(self, instance: Instance) -> Place | None:
        if instance.status not in _WITH_PLACE:
            return None
        for interface in instance.network_interfaces:
            inside, outside = [interface.ip], [one.ip for one in interface.outside]
            for host in outside if self._config.is_public else inside:
                if host:
                    return Place(host=host)
        return None

    async def _pages(self, type_: type[P], path: str, asked: Mapping[str, str]) -> list[P]:
        """Return the pages of a list, all of them. Raises CloudError, also for a list that is not
        whole."""
        pages: list[P] = []
        token: str | None = ""
        while token is not None:
            more = {"pageToken": token} if token else {}
            page = await self._call(type_, "GET", path, {**asked, "maxResults": _PER_PAGE, **more})
            require_whole(page.warning, path)
            if page.unreachables:
                raise CloudAway(f"{path} lacks {', '.join(page.unreachables)[:200]}")
            pages.append(page)
            # An empty one would begin again with the first page.
            token = page.next_page_token or None
        return pages

    async def _call(
        self,
        type_: type[T],
        method: str,
        path: str,
        asked: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> T:
        """Raises CloudError."""
        url = f"{self._config.endpoint}/compute/v1/projects/{self._config.project}/{path}"
        return await self._calls.call(type_, method, url, asked, content)


def _priced(
    prices: PriceList, one: TypeInfo, regions: Iterable[str], *, spot: bool
) -> dict[str, float]:
    found = {region: prices.of(one, region, spot=spot) for region in regions}
    return {region: price for region, price in found.items() if price is not None}


def _is_own(metric: str) -> bool:
    """Return whether it is no quota of commitments, which the machines here do not use."""
    return not metric.startswith("COMMITTED_")
