"""A separate listener at which a booted node gives its address, and nothing else.

It has one path. All refusals look the same, so a stranger does not learn which nodes are expected,
and a peer with many requests must wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec
from aiohttp import web

from common.http import HEAD_SECONDS
from common.rate_limiter import RateLimiter
from common.refusals import ServiceError, Unavailable
from controller.service.machines.registrations import RegistrationService
from controller.store.errors import StoreError
from fairlead.wire.decoders import decoder_of

log = logging.getLogger(__name__)
PATH = "/join"
MAX_BODY_BYTES = 4096
BODY_SECONDS = 10.0
_EVERY_SECONDS = 6.0
_BURST = 10


class JoinBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's name, its one-time token, and the address of its sshd."""

    name: str
    token: str
    host: str
    port: int = 22


def make_join_runner(
    registrations: RegistrationService, now: Callable[[], float], *, shutdown_timeout: float
) -> web.AppRunner:
    """Make the listener's runner. `now`: seconds that only grow."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    limit = RateLimiter(now, every=_EVERY_SECONDS, burst=_BURST)

    async def join(request: web.Request) -> web.Response:
        wait = limit.wait_of(request.remote or "")
        if wait:
            return web.Response(status=429, headers={"Retry-After": str(math.ceil(wait))})
        return web.Response(status=await _join(registrations, request))

    app.router.add_post(PATH, join)
    return web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=HEAD_SECONDS,
        shutdown_timeout=shutdown_timeout,
    )


async def _join(registrations: RegistrationService, request: web.Request) -> int:
    """Register the node; return the status of the answer."""
    try:
        # A peer that sends a byte now and then (slowloris) must not keep a connection.
        async with asyncio.timeout(BODY_SECONDS):
            body = decoder_of(JoinBody).decode(await request.read())
        node = await registrations.join(body.name, body.token, host=body.host, port=body.port)
    except (Unavailable, StoreError, TimeoutError) as error:
        log.warning("a node could not join: %s", error or "its request came too slowly")
        # Not 403, with which the node's unit gives up for good.
        return 503
    except (ServiceError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = error.message if isinstance(error, ServiceError) else "its request is not understood"
        log.warning("%s was not let join: %s", request.remote, why)
        return 403
    log.info("node %s announced its address: %s", node.name, node.address.host)
    return 200
