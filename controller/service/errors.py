"""The refusals a user can get, each with the code, the sentence and the HTTP status it travels as.

They are raised where a rule is broken and shown, unchanged, by the REST API and the CLI; so each
message is written for the person who has to do something about it.
"""

from __future__ import annotations


class ServiceError(Exception):
    """`code` is for programs, `message` for people, `field` names the input at fault."""

    status = 500
    code = "internal"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code


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


class Conflict(ServiceError):
    status = 409
    code = "conflict"


class Gone(ServiceError):
    """It was there once; asking again gives the same answer."""

    status = 410
    code = "gone"


class Refused(ServiceError):
    """Well-formed, but what it asks for must not or can not be done."""

    status = 422
    code = "refused"


class Unavailable(ServiceError):
    """Nothing was decided; the same request may succeed later."""

    status = 503
    code = "unavailable"
