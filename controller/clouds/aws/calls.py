"""Calls of botocore, in threads of their own, because it waits in its calls."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from controller.clouds.aws.errors import refusal
from controller.clouds.base import CloudError
from controller.provider_config.aws import AwsProvider

_THREADS = 16
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_ACCOUNT_EVERY_SECONDS = 60.0
_WHO = "get_caller_identity"
_PRICES_REGION = "us-east-1"
"""It has the price list of all regions."""
T = TypeVar("T")


class Calls:
    """The calls of one account. Nothing here repeats one: `ProviderCalls` does, and counts."""

    def __init__(self, name: str, config: AwsProvider) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"provider-{name}")
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._account: str | None = None
        self._account_fault: tuple[float, CloudError] | None = None
        """Until when the account is not asked for again, and why."""

    async def close(self) -> None:
        # What waits is cancelled; a call that is under way ends by its timeouts, and Python would
        # wait for its thread in any case.
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def ec2(self, region: str, call: str, **request: Any) -> dict[str, Any]:
        """Raises CloudError."""

        def work() -> dict[str, Any]:
            answer: dict[str, Any] = getattr(self._client(region), call)(**request)
            return answer

        return await self._in_thread(region, call, work)

    async def pages(self, region: str, call: str, **request: Any) -> list[dict[str, Any]]:
        """Return the pages of a list, all of them. Raises CloudError."""

        def work() -> list[dict[str, Any]]:
            return list(self._client(region).get_paginator(call).paginate(**request))

        return await self._in_thread(region, call, work)

    async def price_list(self, chosen: list[dict[str, str]]) -> list[str]:
        """Return the entries of the price list that the filters choose. Raises CloudError."""

        def work() -> list[str]:
            client = self._client(_PRICES_REGION, "pricing")
            pages = client.get_paginator("get_products").paginate(
                ServiceCode="AmazonEC2", Filters=chosen
            )
            return [entry for page in pages for entry in page.get("PriceList", ())]

        return await self._in_thread(_PRICES_REGION, "get_products", work)

    async def account(self) -> str:
        """Return the id of the account. Raises CloudError."""
        loop, region = asyncio.get_running_loop(), next(iter(self._config.regions))
        if self._account is None:
            # Without a way to STS, each list would wait for it.
            if self._account_fault is not None and loop.time() < self._account_fault[0]:
                raise self._account_fault[1]
            try:
                self._account = await self._in_thread(region, _WHO, self._caller)
            except CloudError as error:
                self._account_fault = loop.time() + _ACCOUNT_EVERY_SECONDS, error
                raise
        return self._account

    def _caller(self) -> str:
        # It needs no permission. The session keeps its credentials, so the account stays.
        region = next(iter(self._config.regions))
        return str(self._client(region, "sts").get_caller_identity()["Account"])

    async def quota(self, region: str, code: str) -> float:
        """Return the account's quota of EC2 with this code. Raises CloudError."""

        def work() -> float:
            client = self._client(region, "service-quotas")
            answer = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)
            return float(answer["Quota"]["Value"])

        return await self._in_thread(region, "get_service_quota", work)

    async def instance_profile(self, name: str) -> dict[str, Any]:
        """Return the instance profile of this name. Raises CloudError."""
        region = next(iter(self._config.regions))

        def work() -> dict[str, Any]:
            client = self._client(region, "iam")
            answer = client.get_instance_profile(InstanceProfileName=name)
            profile: dict[str, Any] = answer["InstanceProfile"]
            return profile

        return await self._in_thread(region, "get_instance_profile", work)

    async def _in_thread(self, region: str, call: str, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        # botocore has two roots: calls that got no answer, and answers that are errors.
        except (BotoCoreError, ClientError) as error:
            raise refusal(error, f"{call} in {region}") from None

    def _client(self, region: str, service: str = "ec2") -> Any:
        # Clients may be shared by threads, but making one is not safe, and credentials that come
        # from a role of the machine are asked for here.
        with self._lock:
            if (region, service) not in self._clients:
                if self._session is None:
                    self._session = botocore.session.Session(profile=self._config.profile)
                    self._session.register_component("data_loader", _loader())
                self._clients[region, service] = self._session.create_client(
                    service,
                    region_name=region,
                    endpoint_url=self._config.endpoint if service == "ec2" else None,
                    config=Config(
                        connect_timeout=_CONNECT_SECONDS,
                        read_timeout=_READ_SECONDS,
                        retries={"mode": "standard", "total_max_attempts": 1},
                        max_pool_connections=_THREADS,
                        user_agent_extra="fairlead",
                    ),
                )
            return self._clients[region, service]


@functools.cache
def _loader() -> Any:
    """Return what keeps the description of EC2's API, once for all accounts: it is the larger part
    of what a client takes."""
    return botocore.loaders.create_loader()
