"""The one shape of every refusal and failure, when it is raised and when it is sent."""

from __future__ import annotations

import msgspec

from fairlead.wire.decoders import decoder_of

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for malformed bytes."""

LEADS_NO_MORE = "leads_no_more"
"""The code of a refusal by a controller that may have been replaced: it did nothing."""
STORE_UNAVAILABLE = "store_unavailable"
"""The code where the database could not be asked; it may be in a moment."""

UPLOAD_NOT_STORED = "upload_not_stored"
"""The code where the controller's disk takes no upload: it is full, or broken."""
NOT_UPLOADED = "not_uploaded"
"""The code where the controller does not have the code of the user's that a run needs, or no longer
has it."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    field: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The one shape of every 4xx and 5xx answer."""

    error: ErrorDetail


class Refused(Exception):
    """A request is refused with an HTTP status.

    `code` is stable and for programs. `message` is for the person who must act. `field` names the
    wrong input.
    """

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field

    def body(self) -> bytes:
        """The refusal as JSON."""
        detail = ErrorDetail(code=self.code, message=self.message, field=self.field)
        return msgspec.json.encode(ErrorBody(error=detail))


class AgentError(Exception):
    """An agent refused a request of the controller: on the agent's side this was a `Refused`.

    `code` is stable and for programs, `message` is for people; `field` names the wrong field, if
    there is one.
    """

    def __init__(self, code: str, message: str, status: int, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.field = field


class AgentUnavailable(Exception):
    """An agent cannot be asked, or its answer broke off: nothing is known about the request."""


def read_error(body: bytes) -> ErrorDetail | None:
    """Return the error in a 4xx or 5xx answer; None when it has another shape."""
    try:
        return decoder_of(ErrorBody).decode(body).error
    # A reverse proxy in front answers with pages of its own.
    except MALFORMED:
        return None
