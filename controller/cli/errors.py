"""The errors of commands: one sentence on stderr and an exit status, never a traceback."""

from __future__ import annotations

from http import HTTPStatus

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CliError(Exception):
    """The command failed; the message is for the user at the terminal."""

    def __init__(self, message: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class OutputError(CliError):
    """The disk or device behind stdout or stderr accepts no more data."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")


class ApiError(CliError):
    """The controller refused the request. Status 400 means that the user's input is wrong."""

    def __init__(self, status: int, code: str, message: str, field: str | None) -> None:
        exit_status = EXIT_USAGE if status == HTTPStatus.BAD_REQUEST else EXIT_FAILED
        super().__init__(f"{field}: {message}" if field else message, exit_status)
        self.status = status
        self.code = code


class ConnectionLost(CliError):
    """The controller cannot be reached, or the connection broke during an answer.

    `refused`: nothing was there that could have received the request.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
