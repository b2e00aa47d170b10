"""The provider, through botocore: it finds credentials as all programs of AWS do (environment,
profile, web identity, the role of the machine), signs, and knows every endpoint.

A machine's id is `REGION/INSTANCE`, since EC2 finds an instance only in its region.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controller.clouds.aws import types as aws_types
from controller.clouds.aws.calls import Calls
from controller.clouds.aws.errors import InstanceUnknown, SetupRefused, TokenMismatch, WouldWork
from controller.clouds.aws.examination import Examination, asked
from controller.clouds.aws.instances import (
    FLEET_TAG,
    INSTALLATION_TAG,
    MACHINE_TAG,
    Image,
    created_of,
    disks_of,
    image_of,
    place_of,
    state_of,
    tag_of,
    tags_of,
    traits_of,
    words_of_bid,
)
from controller.clouds.aws.spot_prices import SpotPrices
from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    Created,
    Described,
    Examined,
    KnownOffers,
    Order,
    Refused,
    each_region,
    keep_reading,
    known_of,
)
from controller.clouds.catalog import Catalog, MachineType, Reading, completed, with_older
from controller.clouds.pace import Pace
from controller.clouds.sizes import disk_for_jobs, memory_for_jobs
from controller.lifecycle.machines.model import Offer, Reach
from controller.lifecycle.machines.reconcile import Found
from controller.provider_config.aws import AwsProvider, AwsRegion

DESCRIBE_EVERY_SECONDS = 5.0
"""The least time between two questions for machines in one region."""
VISIBLE_AFTER_SECONDS = 60.0
"""For so long EC2 may not know the id of a machine that it has just made."""
MAX_USER_DATA = 16 << 10
_MAX_FILTER_VALUES = 200
_THERE = ("pending", "running", "stopping", "stopped")
"""The states of an instance that exists. One that is shutting down is neither billed nor used."""
QUOTAS = {
    "L-1216C47A": "standard machines on demand",
    "L-34B43A08": "standard spot machines",
    "L-DB2E81BA": "machines of G and VT on demand",
    "L-3819A6DF": "spot machines of G and VT",
    "L-417A185B": "machines of P on demand",
    "L-7212CCBC": "spot machines of P",
}
"""The quotas of EC2 that limit the types of the catalog, by their codes."""
_TRIED_TYPE = "t3.medium"


class AwsCloud:
    """EC2 in the regions of `config`. `describe_every`, `visible_after`: seconds."""

    def __init__(
        self,
        name: str,
        config: AwsProvider,
        *,
        catalog: Catalog | None = None,
        describe_every: float = DESCRIBE_EVERY_SECONDS,
        visible_after: float = VISIBLE_AFTER_SECONDS,
    ) -> None:
        self.abilities = Abilities(idempotent=True, visible_after=visible_after)
        self._name = name
        self._config = config
        self.catalog = catalog or Catalog("aws")
        self._calls = Calls(name, config)
        self._paces = {region: Pace(describe_every) for region in config.regions}
        self._images: dict[str, Image] = {}
        self._spot = SpotPrices(self._calls)
        self._unknown_since: dict[str, float] = {}
        """When EC2 first did not know a machine that is to end, by its id."""

    async def close(self) -> None:
        await self._calls.close()

    # -- offers -----------------------------------------------------------------------------

    async def account(self) -> str:
        return await self._calls.account()

    async def offers(self) -> KnownOffers:
        types = self.catalog.types()

        async def of(region: str) -> list[Offer]:
            where = self._config.regions[region]
            prices = {one.name: self._price(one, region) for one in types}
            spot = await self._spot.of(region, [name for name, price in prices.items() if price])
            return [
                offer
                for one in types
                if (price := prices[one.name]) is not None
                for offer in self._offers_of(one, region, where, price, spot)
            ]

        known = await known_of(self._config.regions, of)
        return known.at(self._config.rate)

    async def refresh(self) -> None:
        by_region, refused = await each_region(self._config.regions, self._types_in)
        prices, unpriced = await self._prices_of(by_region)
        before = self.catalog.reading
        for region in [one for one in unpriced if before is not None and before.has_prices_of(one)]:
            # Prices that were once read are nearer to the truth than the release's.
            refused[region] = unpriced.pop(region)
            del by_region[region]
        regions = tuple(by_region)
        notes = [f"{one}: {why}; it has those of the release" for one, why in unpriced.items()]
        release = self.catalog.begun(regions)
        found = aws_types.merged(
            {region: types for region, (types, _) in by_region.items()},
            {region: zones for region, (_, zones) in by_region.items()},
            prices,
            {one.name: one for one in release},
            self._config.prices.keys(),
        )
        types, more = completed(found, release, regions, self._config.prices)
        reading = Reading(
            read_at=time.time(),
            regions=regions,
            types=types,
            notes=(*notes, *more),
            unpriced=unpriced,
        )
        await keep_reading(self.catalog, with_older(reading, before, refused))

    async def _types_in(
        self, region: str
    ) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
        """Return the types of the region, and the zones of each by its name."""
        filters = list(aws_types.TYPE_FILTERS)
        pages = await self._calls.pages(region, "describe_instance_types", Filters=filters)
        offered = await self._calls.pages(
            region, "describe_instance_type_offerings", LocationType="availability-zone"
        )
        zones: dict[str, tuple[str, ...]] = {}
        for page in offered:
            for one in page.get("InstanceTypeOfferings", ()):
                name = one["InstanceType"]
                zones[name] = (*zones.get(name, ()), one["Location"])
        return [one for page in pages for one in page.get("InstanceTypes", ())], zones

    async def _prices_of(
        self, regions: Iterable[str]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """Return the prices by region and type, and why some regions told none."""
        prices: dict[str, dict[str, float]] = {}
        unpriced: dict[str, str] = {}
        for region in regions:
            try:
                entries = await self._calls.price_list(aws_types.price_filters(region))
                prices[region] = aws_types.prices_of(entries)
            except CloudError as error:
                # Types and zones are worth something without it.
                prices[region] = {}
                unpriced[region] = f"the price list was not told: {error}"
            except (msgspec.MsgspecError, ValueError) as error:
                prices[region] = {}
                unpriced[region] = f"the price list cannot be read: {error}"
        return prices, unpriced

    def _price(self, one: MachineType, region: str) -> float | None:
        return self._config.prices.get(one.name, one.prices.get(region))

    def _offers_of(
        self,
        one: MachineType,
        region: str,
        where: AwsRegion,
        price: float,
        spot: Mapping[tuple[str, str], float],
    ) -> Iterable[Offer]:
        there = one.zones.get(region)
        for zone in where.subnets:
            if there is not None and zone not in there:
                continue
            on_demand = Offer(
                provider=self._name,
                instance_type=one.name,
                region=region,
                zone=zone,
                price=price,
                cpu=one.cpu,
                memory=memory_for_jobs(one.memory),
                disk=disk_for_jobs(self._config.disk),
                gpus=one.gpus,
            )
            yield on_demand
            asked = spot.get((one.name, zone), price)
            cheaper = min(price, asked * (1.0 + self._config.spot_margin))
            yield msgspec.structs.replace(on_demand, spot=True, price=cheaper)

    # -- machines ---------------------------------------------------------------------------

    async def create(self, order: Order) -> Created:
        offer = order.offer
        where = self._config.regions.get(offer.region)
        if where is None or offer.zone not in where.subnets:
            place = offer.zone or offer.region
            message = f"providers.{self._name}.regions names no subnet in {place}"
            raise Refused(message, Reach.ZONE)
        size = len(order.user_data.encode())
        if size > MAX_USER_DATA:
            raise Refused(f"the user-data has {size} bytes, and EC2 takes {MAX_USER_DATA}")
        request = self._request(order, where, await self._image(offer.region, where.image))
        try:
            answer = await self._run(offer, request)
        # EC2 has the token with other parameters (IdempotentParameterMismatch): an order of before
        # has made a machine.
        except TokenMismatch as error:
            return await self._made_before(order, error)
        instances = answer.get("Instances", ())
        if len(instances) != 1:
            raise CloudAway(f"run_instances in {offer.region} told {len(instances)} machines")
        return created_of(offer.region, instances[0], self._config.is_public)

    async def _run(self, offer: Offer, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises CloudError, which names the field that is wrong."""
        try:
            return await self._calls.ec2(offer.region, "run_instances", **request)
        except SetupRefused as error:
            field = error.field.format(region=offer.region, zone=offer.zone)
            raise Refused(f"providers.{self._name}.{field}: {error}", error.reach) from None

    def _request(self, order: Order, where: AwsRegion, image: Image) -> dict[str, Any]:
        """Return what is asked for: the same for the same order, image and settings."""
        config, offer = self._config, order.offer
        assert offer.zone is not None
        request: dict[str, Any] = {
            "ClientToken": order.token,
            "ImageId": where.image,
            "InstanceType": offer.instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": order.user_data,
            # A job's container is one hop further away than the machine itself.
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
            },
            # A machine at the end of its leash powers itself off: that ends the bill.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0,
                    "SubnetId": where.subnets[offer.zone],
                    "Groups": list(where.security_groups),
                    "AssociatePublicIpAddress": config.is_public,
                    "DeleteOnTermination": True,
                }
            ],
            "BlockDeviceMappings": disks_of(image, config.disk),
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags_of(order)}
                for kind in ("instance", "volume", "network-interface")
            ],
        }
        if config.key_name is not None:
            request["KeyName"] = config.key_name
        if config.instance_profile is not None:
            request["IamInstanceProfile"] = {"Name": config.instance_profile}
        if offer.spot:
            options = {
                # A persistent request makes another machine after this one's end.
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            }
            if offer.bid is not None:
                # Without one, EC2 asks as much as the price on demand once spot prices rise, and
                # budgets count less.
                options["MaxPrice"] = words_of_bid(offer.bid)
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return request

    async def _made_before(self, order: Order, mismatch: TokenMismatch) -> Created:
        """Return the machine that an earlier call of this order made, with other settings."""
        region = order.offer.region
        chosen = [{"Name": "client-token", "Values": [order.token]}]
        for instance in await self._instances(region, chosen):
            if state_of(instance) not in _THERE:
                raise Refused(f"the machine of this order has ended already: {mismatch}")
            return created_of(region, instance, self._config.is_public)
        # It may not be visible yet.
        raise mismatch

    async def _image(self, region: str, image: str) -> Image:
        if (known := self._images.get(region)) is not None:
            return known
        field = f"providers.{self._name}.regions.{region}.image"
        try:
            answer = await self._calls.ec2(region, "describe_images", ImageIds=[image])
        except (Refused, SetupRefused) as error:
            raise Refused(f"{field}: {error}", Reach.REGION) from None
        images = answer.get("Images", ())
        if not images:
            raise Refused(f"{field}: there is no image {image} in {region}", Reach.REGION)
        self._images[region] = image_of(images[0])
        return self._images[region]

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        by_region: dict[str, list[str]] = {}
        for one in instance_ids:
            region, instance = self._split(one)
            by_region.setdefault(region, []).append(instance)
        every = await _all(self._described(region, ids) for region, ids in by_region.items())
        return {name: described for found in every for name, described in found.items()}

    async def _described(self, region: str, ids: list[str]) -> dict[str, Described]:
        # By a filter: among ids, a single one that EC2 does not know yet would refuse them all.
        if len(ids) <= _MAX_FILTER_VALUES:
            chosen = [{"Name": "instance-id", "Values": ids}]
        else:
            chosen = [{"Name": "tag-key", "Values": [MACHINE_TAG]}]
        wanted = set(ids)
        return {
            f"{region}/{one['InstanceId']}": Described(place=place_of(one, self._config.is_public))
            for one in await self._instances(region, chosen)
            if one["InstanceId"] in wanted and state_of(one) in _THERE
        }

    async def terminate(self, instance_id: str) -> bool:
        region, instance = self._split(instance_id)
        try:
            answer = await self._calls.ec2(region, "terminate_instances", InstanceIds=[instance])
        # EC2 forgets an ended machine after an hour, and does not know a new one for seconds.
        except InstanceUnknown:
            return self._is_gone(instance_id)
        except CloudError:
            # What imitates EC2 may refuse to end a machine twice, as moto does.
            if await self._has_ended(region, instance):
                return True
            raise
        self._unknown_since.pop(instance_id, None)
        states = [one["CurrentState"]["Name"] for one in answer.get("TerminatingInstances", ())]
        return states == ["terminated"]

    async def _has_ended(self, region: str, instance: str) -> bool:
        chosen = [
            {"Name": "instance-id", "Values": [instance]},
            {"Name": "instance-state-name", "Values": ["terminated"]},
        ]
        try:
            return bool(await self._instances(region, chosen))
        except CloudError:
            return False

    def _is_gone(self, instance_id: str) -> bool:
        """Return whether EC2 has not known the machine for long enough: at first it does not know
        one that it has just made."""
        now = asyncio.get_running_loop().time()
        since = self._unknown_since.setdefault(instance_id, now)
        if now - since < self.abilities.visible_after:
            return False
        del self._unknown_since[instance_id]
        return True

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        chosen = [
            {"Name": f"tag:{INSTALLATION_TAG}", "Values": [installation]},
            {"Name": "instance-state-name", "Values": list(_THERE)},
        ]
        every = await _all(self._found(region, chosen) for region in self._config.regions)
        return [one for found in every for one in found]

    async def _found(self, region: str, chosen: list[dict[str, Any]]) -> list[Found]:
        return [
            Found(
                instance_id=f"{region}/{one['InstanceId']}",
                machine_id=tag_of(one, MACHINE_TAG),
                fleet=tag_of(one, FLEET_TAG),
                created_at=one["LaunchTime"].timestamp(),
                place=place_of(one, self._config.is_public),
                traits=traits_of(region, one),
            )
            for one in await self._instances(region, chosen)
        ]

    async def _instances(self, region: str, chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return all instances that the filters choose, page by page."""
        async with self._paces[region].turn():
            pages = await self._calls.pages(region, "describe_instances", Filters=chosen)
        return [
            instance
            for page in pages
            for reservation in page.get("Reservations", ())
            for instance in reservation.get("Instances", ())
        ]

    async def console(self, instance_id: str) -> str | None:
        region, instance = self._split(instance_id)
        try:
            answer = await self._calls.ec2(region, "get_console_output", InstanceId=instance)
        except InstanceUnknown:
            return None
        return answer.get("Output") or None

    # -- examining --------------------------------------------------------------------------

    async def examine(self) -> Sequence[Examined]:
        found = list(self._never_rented())
        is_right = True
        if (profile := self._config.instance_profile) is not None:
            _, examined = await asked(
                f"instance profile {profile}",
                f"providers.{self._name}.instance_profile",
                self._calls.instance_profile(profile),
            )
            found.append(examined)
            is_right = examined.fault is None
        regions = self._config.regions
        every = await _all(self._examined(region, tries=is_right) for region in regions)
        return [*found, *(one for found in every for one in found)]

    def _never_rented(self) -> Iterable[Examined]:
        """Yield what the controller's file names in vain."""
        types = self.catalog.types()
        field = f"providers.{self._name}"
        for region in self._config.regions:
            if all(self._price(one, region) is None for one in types):
                fault = (
                    f"{field}.regions.{region}: the catalog has no price there, so nothing is "
                    f"rented: give your own in {field}.prices"
                )
                yield Examined(what=f"offers in {region}", fault=fault)
        for name in sorted(self._config.prices.keys() - {one.name for one in types}):
            fault = f"{field}.prices.{name}: the catalog has no such type, so none is rented"
            yield Examined(what=f"price of {name}", fault=fault)

    async def _examined(self, region: str, *, tries: bool) -> list[Examined]:
        """`tries`: whether what all regions share is right, so that an order may be tried."""
        examination = Examination(self._name, self._config, self._calls, region)
        await examination.run()
        found = examination.found
        # It may be another image since.
        self._images.pop(region, None)
        if tries and all(one.fault is None for one in found):
            for zone in self._config.regions[region].subnets:
                what = f"rights to make a machine in {zone}"
                found.append(await self._tried(what, self._dry_run(region, zone)))
        for code, name in QUOTAS.items():
            found.append(await self._quota(region, code, name))
        return found

    async def _tried(self, what: str, call: Awaitable[object]) -> Examined:
        try:
            await call
        except CloudError as error:
            return Examined(what=what, fault=str(error))
        return Examined(what=what)

    async def _dry_run(self, region: str, zone: str) -> None:
        """Ask for a machine that is not made. Raises CloudError."""
        where = self._config.regions[region]
        size = Offer(
            provider=self._name,
            instance_type=_TRIED_TYPE,
            region=region,
            zone=zone,
            price=0.0,
            cpu=0.0,
            memory=0,
            disk=0,
        )
        order = Order(
            machine_id="check",
            name="check",
            installation="check",
            fleet="check",
            offer=size,
            token="check",
            user_data="#cloud-config\n",
        )
        request = self._request(order, where, await self._image(region, where.image))
        # Zones differ in their requests, and one token is for one request; botocore makes one.
        del request["ClientToken"]
        try:
            await self._run(size, {"DryRun": True, **request})
        except WouldWork:
            return

    async def _quota(self, region: str, code: str, name: str) -> Examined:
        what = f"quota of {name} in {region}"
        try:
            cores = await self._calls.quota(region, code)
        except CloudError as error:
            return Examined(what=what, note=f"not known: {error}")
        if cores <= 0:
            return Examined(what=what, note="0 vCPUs: there are none until AWS raises it")
        return Examined(what=f"{what}: {cores:g} vCPUs")

    def _split(self, instance_id: str) -> tuple[str, str]:
        """Raises CloudAway for a machine in a region that the controller's file does not name."""
        region, _, instance = instance_id.partition("/")
        if region not in self._config.regions:
            raise CloudAway(f"providers.{self._name}.regions does not name {region}")
        return region, instance


async def _all(calls: Iterable[Any]) -> list[Any]:
    """Return all results. Raises the first CloudError once every call has ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return results
