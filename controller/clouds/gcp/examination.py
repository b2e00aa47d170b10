"""An examination asks Google for what the controller's file names: subnetworks, what the firewall
rules of their networks let in, and the account of the machines.

An order needs none of these rights to look, so what an account may not see is a note and no fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.clouds.base import CloudError, Examined, Unauthorized
from controller.clouds.gcp.answers import (
    AllowedPermissions,
    FirewallRule,
    FirewallRules,
    Subnetwork,
    require_whole,
)
from controller.clouds.gcp.calls import Calls
from controller.clouds.gcp.errors import NotThere
from controller.provider_config.gcp import GcpProvider

IAM_URL = "https://iam.googleapis.com"
_ACT_AS = "iam.serviceAccounts.actAs"
_SSH_PORT = 22
_ROLE = "examples/machines/gcp-role.yaml"


class Examination:
    """Asks for it with the calls of the provider `name`."""

    def __init__(self, name: str, config: GcpProvider, calls: Calls, iam_url: str) -> None:
        self._within = f"providers.{name}"
        self._config = config
        self._calls = calls
        self._iam_url = iam_url

    async def subnetwork(self, region: str) -> list[Examined]:
        """Return whether the region's subnetwork is there, and whether the controller may reach
        machines in it."""
        path = self._config.regions[region].subnetwork
        what, field = f"subnetwork {path}", f"{self._within}.regions.{region}.subnetwork"
        try:
            url = f"{self._config.endpoint}/compute/v1/{path}"
            found = await self._calls.call(Subnetwork, "GET", url)
        except CloudError as error:
            return [_told(what, field, error, f"name one that is in {region}")]
        _, _, network = found.network.partition("/projects/")
        return [Examined(what=what), await self._firewall(f"projects/{network}")]

    async def _firewall(self, network: str) -> Examined:
        """Return whether a rule of the network lets the controller in."""
        what = f"firewall rules of {network}"
        project = "/".join(network.split("/")[:2])
        try:
            rules = await self._rules(project)
        except CloudError as error:
            return Examined(what=what, note=f"not known: {error}")
        own = [one for one in rules if one.network.endswith(f"/{network}")]
        if any(self._lets_in(one) for one in own):
            return Examined(what=what)
        tags = self._config.network_tags
        whom = f"machines with the tag {' or '.join(tags)}" if tags else "all machines"
        # A firewall policy of the network, its folder or organization may do so instead.
        note = (
            f"none lets TCP port {_SSH_PORT} in to {whom}: without one, or a firewall policy that "
            f"does, the controller reaches no machine ({self._within}.network_tags)"
        )
        return Examined(what=what, note=note)

    async def _rules(self, project: str) -> Sequence[FirewallRule]:
        """Raises CloudError."""
        url = f"{self._config.endpoint}/compute/v1/{project}/global/firewalls"
        rules: list[FirewallRule] = []
        token: str | None = ""
        while token is not None:
            asked = {"pageToken": token} if token else {}
            page = await self._calls.call(FirewallRules, "GET", url, asked)
            require_whole(page.warning, "the list of firewall rules")
            rules += page.items
            token = page.next_page_token or None
        return rules

    def _lets_in(self, rule: FirewallRule) -> bool:
        if rule.direction != "INGRESS" or rule.disabled:
            return False
        if self._config.is_public and not rule.source_ranges:
            # Tags and accounts as sources mean machines of the same network.
            return False
        return self._is_for_machines(rule) and any(
            one.protocol in ("all", "tcp", "6") and _has(one.ports, _SSH_PORT)
            for one in rule.allowed
        )

    def _is_for_machines(self, rule: FirewallRule) -> bool:
        if not rule.target_tags and not rule.target_service_accounts:
            return True
        is_tagged = not set(rule.target_tags).isdisjoint(self._config.network_tags)
        return is_tagged or self._config.service_account in rule.target_service_accounts

    async def service_account(self) -> list[Examined]:
        """Return whether machines may have the account of the file, if it names one."""
        account = self._config.service_account
        if account is None:
            return []
        what, field = f"service account {account}", f"{self._within}.service_account"
        # `-`: the project that the account is of.
        path = f"projects/-/serviceAccounts/{account}:testIamPermissions"
        try:
            content = {"permissions": [_ACT_AS]}
            url = f"{self._iam_url}/v1/{path}"
            allowed = await self._calls.call(AllowedPermissions, "POST", url, content=content)
        except CloudError as error:
            return [_told(what, field, error, "name one that there is")]
        if _ACT_AS not in allowed.permissions:
            fault = (
                f"{field}: the controller's account lacks {_ACT_AS} on it: give it the role "
                f"roles/iam.serviceAccountUser there"
            )
            return [Examined(what=what, fault=fault)]
        return [Examined(what=what)]


def _told(what: str, field: str, error: CloudError, fix: str) -> Examined:
    if isinstance(error, NotThere):
        return Examined(what=what, fault=f"{field}: {error}: {fix}")
    if isinstance(error, Unauthorized):
        note = f"not known: {error}: its rights lack what {_ROLE} has, or the API is not enabled"
        return Examined(what=what, note=note)
    return Examined(what=what, fault=f"{field}: {error}")


def _has(ports: Iterable[str], port: int) -> bool:
    """Return whether the ports of a rule have this one; none are all. One is `22` or `20-25`."""
    every = list(ports)
    for one in every:
        first, _, last = one.partition("-")
        if int(first) <= port <= int(last or first):
            return True
    return not every
