"""Lambda Cloud in memory, over HTTP: names that are not unique, tags, refusals by code, an instance
that takes a moment to boot and to end."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from aiohttp import web

from tests.doubles.serving import served

KEY = "canary-of-lambda"
_TYPES: tuple[tuple[str, str, int, int, int, int, int, list[str]], ...] = (
    ("gpu_1x_h100_sxm5", "H100 (80 GB SXM5)", 1, 26, 225, 2816, 429, ["us-east-1", "us-west-3"]),
    ("gpu_8x_a100", "A100 (40 GB SXM4)", 8, 124, 1800, 6144, 1592, []),
    ("gpu_1x_gh200", "GH200 (96 GB)", 1, 64, 432, 4096, 229, ["us-east-1"]),
    ("cpu_4x_general", "N/A", 0, 4, 16, 100, 40, ["us-east-1"]),
)
_MISSING = "global/object-does-not-exist"


class LambdaFailure(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str = "eight are enough"
    headers: dict[str, str] = {}


class LambdaDouble:
    """One account. `instances` by id; `calls` counts requests by path."""

    def __init__(self) -> None:
        self.url = ""
        self.instances: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.launches: list[dict[str, Any]] = []
        """The content of each launch that was let through."""
        self.fails: dict[str, list[LambdaFailure]] = {}
        """Refusals of the next calls, by path."""
        self.loses = False
        """Whether the next launch is done and its answer is lost."""
        self.cuts = False
        """Whether the next list breaks off within."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/instance-types", self._types)
        app.router.add_get("/instances", self._list)
        app.router.add_get("/instances/{id}", self._show)
        app.router.add_post("/instance-operations/launch", self._launch)
        app.router.add_post("/instance-operations/terminate", self._terminate)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls[request.path] += 1
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return _error(LambdaFailure(401, "global/invalid-api-key", "API key was invalid"))
        if waiting := self.fails.get(request.path):
            return _error(waiting.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _types(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "data": {
                    name: {
                        "instance_type": {
                            "name": name,
                            "description": f"{count}x {gpu}",
                            "gpu_description": gpu,
                            "price_cents_per_hour": cents,
                            "specs": {
                                "vcpus": cpu,
                                "memory_gib": memory,
                                "storage_gib": disk,
                                "gpus": count,
                            },
                        },
                        "regions_with_capacity_available": [
                            {"name": region, "description": region} for region in regions
                        ],
                    }
                    for name, gpu, count, cpu, memory, disk, cents, regions in _TYPES
                }
            }
        )

    async def _list(self, request: web.Request) -> web.StreamResponse:
        whole = web.json_response({"data": [self._moved(one) for one in self.instances.values()]})
        if not self.cuts:
            return whole
        self.cuts = False
        assert isinstance(whole.body, bytes)
        cut = web.StreamResponse(headers={"Content-Length": str(len(whole.body))})
        await cut.prepare(request)
        await cut.write(whole.body[: len(whole.body) // 2])
        _drop(request)
        return cut

    async def _show(self, request: web.Request) -> web.Response:
        instance = self.instances.get(request.match_info["id"])
        if instance is None or instance["status"] == "terminated":
            return _error(LambdaFailure(404, _MISSING, "Specified instance does not exist."))
        return web.json_response({"data": self._moved(instance)})

    async def _launch(self, request: web.Request) -> web.Response:
        wish = await request.json()
        self.launches.append(wish)
        number = len(self.launches)
        instance = {
            "id": f"{number:032x}",
            "name": wish["name"],
            "status": "booting",
            "region": {"name": wish["region_name"], "description": ""},
            "instance_type": {"name": wish["instance_type_name"]},
            "ssh_key_names": wish["ssh_key_names"],
            "file_system_names": [],
            "tags": wish["tags"],
        }
        self.instances[instance["id"]] = instance
        if self.loses:
            self.loses = False
            _drop(request)
        return web.json_response({"data": {"instance_ids": [instance["id"]]}})

    async def _terminate(self, request: web.Request) -> web.Response:
        (one,) = (await request.json())["instance_ids"]
        self.instances[one]["status"] = "terminating"
        return web.json_response({"data": {"terminated_instances": [self.instances[one]]}})

    def _moved(self, instance: dict[str, Any]) -> dict[str, Any]:
        """Return the instance as it is shown now; the next look finds it a step further."""
        shown = dict(instance)
        match instance["status"]:
            case "booting":
                address = f"127.1.0.{int(instance['id'], 16) % 250 + 1}"
                instance |= {"status": "active", "ip": address}
            case "terminating":
                instance["status"] = "terminated"
        return shown


def _drop(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()


def _error(failure: LambdaFailure) -> web.Response:
    content = {"error": {"code": failure.code, "message": failure.message}}
    return web.json_response(content, status=failure.status, headers=failure.headers)


def lambda_cloud() -> AbstractAsyncContextManager[LambdaDouble]:
    return served(LambdaDouble())
