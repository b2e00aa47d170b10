"""How a command fails: a sentence on stderr and an exit status, never a traceback."""

from __future__ import annotations

from http import HTTPStatus

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CliError(Exception):
    """The message is for the person at the terminal."""

    def __init__(self, message: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class OutputError(CliError):
    """The disk or device behind stdout or stderr takes nothing more."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")


class ApiError(CliError):
    """The controller refused; what was asked for is at fault when it says 400."""

    def __init__(self, status: int, code: str, message: str, field: str | None) -> None:
        exit_status = EXIT_USAGE if status == HTTPStatus.BAD_REQUEST else EXIT_FAILED
        super().__init__(f"{field}: {message}" if field else message, exit_status)
        self.status = status
        self.code = code


class ConnectionLost(CliError):
    """The controller can not be reached, or went away in the middle of an answer.

    `refused`: nothing was there that could have taken the request."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
