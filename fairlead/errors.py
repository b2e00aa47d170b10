"""The errors of the client. Each message says what is wrong, why, and what to do."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.documents.runs import RunView


class FairleadError(Exception):
    """The base of all errors; the message is a sentence for the user."""


class UsageError(FairleadError):
    """An argument is wrong."""


class InvalidConfiguration(UsageError):
    """A task's configuration is wrong. The message names file, line and field where they are
    known."""


class SettingsError(FairleadError):
    """The settings do not say which controller or which token to use."""


class ConnectionLost(FairleadError):
    """The controller cannot be reached, or the connection broke during an answer.

    `refused`: nothing was there that could have received the request. `unsent`: nothing of the
    request was sent, so it was not carried out. `why`: the cause alone, in words. `status`: the
    HTTP status of a proxy's answer, in the controller's place.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: bool = False,
        unsent: bool = False,
        why: str = "",
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.refused = refused
        self.unsent = unsent
        self.why = why
        self.status = status


class ClientClosed(FairleadError):
    """The client was closed; its streams have ended."""


class UnexpectedAnswer(FairleadError):
    """The controller's answer is not understood; its version is another one."""


class RunFailed(FairleadError):
    """A run ended otherwise than done. `run` is its final state, `exit_status` what `fairlead
    apply` would exit with."""

    def __init__(self, message: str, run: RunView, exit_status: int) -> None:
        super().__init__(message)
        self.run = run
        self.exit_status = exit_status


class PortTaken(FairleadError):
    """A local port cannot be opened: another program has it, or this user may not."""


class OutputsMissing(FairleadError):
    """Outputs that a job left cannot be brought: lost, expired, not stored yet, or damaged."""


class ApiError(FairleadError):
    """The controller refused the request.

    `code` is stable and for programs; `field` names the wrong input. Frequent statuses have classes
    of their own, so that a program can catch them by name.
    """

    def __init__(self, status: int, code: str, message: str, field: str | None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.status = status
        self.code = code
        self.field = field


class NotLoggedIn(ApiError):
    """The token is missing, unknown or expired."""


class NotAllowed(ApiError):
    """The user may not do this."""


class NotFound(ApiError):
    """There is no such run, job or node, or the user may not see it."""


class Conflict(ApiError):
    """The present state does not allow this; a live run may have the name already."""


class Expired(ApiError):
    """It was removed because of its age."""


# By number: the names are in `http`, which takes a command's start longer to load than this module.
_BY_STATUS: dict[int, type[ApiError]] = {
    401: NotLoggedIn,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    410: Expired,
}


def api_error(status: int, code: str, message: str, field: str | None) -> ApiError:
    """Return the error of a refusal with this HTTP status."""
    return _BY_STATUS.get(status, ApiError)(status, code, message, field)
