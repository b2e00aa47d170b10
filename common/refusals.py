"""The refusals that a user can get, each with its code, sentence and HTTP status.

They are raised where a rule is broken, and the REST API and the CLI show them unchanged. So each
message is written for the user who must act on it.
"""

from __future__ import annotations

from fairlead.wire.errors import Refused


class ServiceError(Refused):
    """A refusal of the service."""

    status = 500
    code = "internal"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(self.status, self.code if code is None else code, message, field)


class Invalid(ServiceError):
    status = 400
    code = "invalid"


class Unauthenticated(ServiceError):
    status = 401
    code = "unauthenticated"


class Forbidden(ServiceError):
    status = 403
    code = "forbidden"


class NotFound(ServiceError):
    status = 404
    code = "not_found"


class TooSlow(ServiceError):
    """What the client sends does not come fast enough."""

    status = 408


class Conflict(ServiceError):
    status = 409
    code = "conflict"


class Gone(ServiceError):
    """It existed once; another request gets the same answer."""

    status = 410
    code = "gone"


class Unprocessable(ServiceError):
    """The request is well-formed, but it must not or cannot be done."""

    status = 422
    code = "refused"


class Unavailable(ServiceError):
    """Nothing was decided; the same request may succeed later."""

    status = 503
    code = "unavailable"
