"""An examination asks EC2 for each thing that the controller's file names in a region: image,
security groups, subnets, key pair, and the instance profile of the machines.

A trial of RunInstances (`DryRun`) does not do that: it is for rights, and need not find what is not
there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller.clouds.aws.calls import Calls
from controller.clouds.aws.errors import SetupRefused
from controller.clouds.base import CloudError, Examined, Refused, Unauthorized
from controller.provider_config.aws import AwsProvider

SSH_PORT = 22
_ARCHITECTURE = "x86_64"
_POLICY = "examples/machines/aws-policy.json"
_EVERY_PROTOCOL = "-1"

Asked = Mapping[str, Any]


class Examination:
    """What one region has of what the file names there, as it was told; see `found`."""

    def __init__(self, name: str, config: AwsProvider, calls: Calls, region: str) -> None:
        self.found: list[Examined] = []
        self._calls = calls
        self._config = config
        self._region = region
        self._where = config.regions[region]
        self._provider = f"providers.{name}"
        self._within = f"{self._provider}.regions.{region}"
        self._groups: dict[str, Asked] = {}

    async def run(self) -> None:
        """Ask for all of it."""
        image = self._where.image
        await self._ask(
            f"image {image} in {self._region}",
            f"{self._within}.image",
            self._one("describe_images", "Images", ImageIds=[image]),
            _fault_of_image,
        )
        for group in self._where.security_groups:
            await self._ask_for_group(group)
        self._judge_rules()
        for zone, subnet in self._where.subnets.items():
            await self._ask_for_subnet(zone, subnet)
        if (key := self._config.key_name) is not None:
            await self._ask(
                f"key pair {key} in {self._region}",
                f"{self._provider}.key_name",
                self._one("describe_key_pairs", "KeyPairs", KeyNames=[key]),
            )

    async def _one(self, call: str, kind: str, **request: Any) -> Asked | None:
        """Return what was asked for; None: it is not there. Raises CloudError."""
        answer = await self._calls.ec2(self._region, call, **request)
        every = answer.get(kind, ())
        return every[0] if every else None

    async def _ask(
        self,
        what: str,
        field: str,
        call: Awaitable[Asked | None],
        judge: Callable[[Asked], str | None] = lambda answer: None,
    ) -> Asked | None:
        """Note whether what the field names is there and, by `judge`, is right; return it."""
        answer, examined = await asked(what, field, call, judge, f"in {self._region}")
        self.found.append(examined)
        return answer

    async def _ask_for_group(self, group: str) -> None:
        call = self._one("describe_security_groups", "SecurityGroups", GroupIds=[group])
        what = f"security group {group} in {self._region}"
        if (answer := await self._ask(what, f"{self._within}.security_groups", call)) is not None:
            self._groups[group] = answer

    def _judge_rules(self) -> None:
        """Note if no rule lets the controller in. Of several groups, what any lets in comes in."""
        if len(self._groups) < len(self._where.security_groups):
            return
        rules = [rule for one in self._groups.values() for rule in one.get("IpPermissions", ())]
        if not any(self._lets_in(rule) for rule in rules):
            fault = (
                f"{self._within}.security_groups: no rule lets TCP port {SSH_PORT} in, so the "
                f"controller reaches no machine: add one for the controller's address"
            )
            what = f"rules of the security groups in {self._region}"
            self.found.append(Examined(what=what, fault=fault))

    def _lets_in(self, rule: Asked) -> bool:
        sources = ["IpRanges", "Ipv6Ranges", "PrefixListIds"]
        if not self._config.is_public:
            # A group as a source means its members' private addresses alone.
            sources.append("UserIdGroupPairs")
        if not any(rule.get(one) for one in sources):
            return False
        protocol = rule.get("IpProtocol")
        if protocol == _EVERY_PROTOCOL:
            return True
        return protocol == "tcp" and rule["FromPort"] <= SSH_PORT <= rule["ToPort"]

    async def _ask_for_subnet(self, zone: str, subnet: str) -> None:
        def fault_of(answer: Asked) -> str | None:
            if (its := answer.get("AvailabilityZone")) != zone:
                return f"it is in zone {its}: name one of {zone}"
            # EC2 refuses such an order: they "belong to different networks".
            for group, one in self._groups.items():
                if one.get("VpcId") != answer.get("VpcId"):
                    return (
                        f"it is in network {answer.get('VpcId')}, and security group {group} in "
                        f"{one.get('VpcId')}: name those of one network"
                    )
            if (state := answer.get("State", "available")) != "available":
                return f"it is {state}"
            return None

        answer = await self._ask(
            f"subnet {subnet} in {zone}",
            f"{self._within}.subnets.{zone}",
            self._one("describe_subnets", "Subnets", SubnetIds=[subnet]),
            fault_of,
        )
        if answer is not None and answer.get("AvailableIpAddressCount") == 0:
            note = "it has no free address, so no machine is made there until one is free"
            self.found.append(Examined(what=f"addresses of {subnet} in {zone}", note=note))


async def asked(
    what: str,
    field: str,
    call: Awaitable[Asked | None],
    judge: Callable[[Asked], str | None] = lambda answer: None,
    where: str = "in this account",
) -> tuple[Asked | None, Examined]:
    """Return what the field names, if it is there, and what an operator is told of it. `judge`
    returns what is wrong with it."""
    try:
        answer = await call
    except Unauthorized as error:
        # An order needs no right to look at it, so it may be there all the same.
        note = f"not known: {error}: its rights lack what {_POLICY} has"
        return None, Examined(what=what, note=note)
    except (Refused, SetupRefused) as error:
        return None, Examined(what=what, fault=f"{field}: {error}: {_fix(where)}")
    # A call that fails for another cause tells nothing of what the field names.
    except CloudError as error:
        return None, Examined(what=what, fault=f"{field}: {error}")
    if answer is None:
        fault = f"{field}: there is none {where}: {_fix(where)}"
        return None, Examined(what=what, fault=fault)
    if (wrong := judge(answer)) is not None:
        return None, Examined(what=what, fault=f"{field}: {wrong}")
    return answer, Examined(what=what)


def _fix(where: str) -> str:
    return f"name one that is {where}"


def _fault_of_image(answer: Asked) -> str | None:
    if (its := answer.get("Architecture", _ARCHITECTURE)) != _ARCHITECTURE:
        return f"it is for {its}, and machines are of {_ARCHITECTURE}"
    if (state := answer.get("State", "available")) != "available":
        return f"it is {state}: wait, or name another image"
    return None
