"""The refusals and failures that a client of a service sees from the proxy."""

from __future__ import annotations

from aiohttp import web

from common.refusals import ServiceError
from fairlead.wire.errors import LEADS_NO_MORE

NOTHING_DONE: web.ResponseKey[bool] = web.ResponseKey("nothing_done", bool)
"""Of a refusal: another controller, or this one later, may do the same request."""


class NotAllowed(ServiceError):
    status = 405
    code = "method_not_allowed"


class TooLarge(ServiceError):
    status = 413
    code = "too_large"


class TooMany(ServiceError):
    """`wait`: seconds until the next request may come."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


class ReplicaFailed(ServiceError):
    """No replica gave a usable answer."""

    status = 502
    code = "replica_failed"


class NoneReached(ReplicaFailed):
    """No replica got the request, or it may be repeated and none answered."""


class NoReplica(ServiceError):
    """No replica is ready; `wait`: seconds after which another try makes sense."""

    status = 503
    code = "no_replica"
    wait = 5.0


class LeftToAnother(NoReplica):
    """The request waited for a replica here, and this controller ends."""

    code = LEADS_NO_MORE
    wait = 1.0


class ReplicaTimeout(ServiceError):
    status = 504
    code = "replica_timeout"
