"""The errors of commands: one sentence on stderr and an exit status, never a traceback."""

from __future__ import annotations

from fairlead.errors import ApiError, FairleadError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
# 128 and the signal's number, as a shell reports it: SIGINT is 2, SIGPIPE is 13.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CliError(FairleadError):
    """The command failed; the message is for the user at the terminal."""

    def __init__(self, message: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class OutputError(CliError):
    """The disk or device behind stdout or stderr accepts no more data."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")


def exit_status_of(error: FairleadError) -> int:
    """Return the command's exit status: EXIT_USAGE when the user's input is wrong."""
    match error:
        case CliError():
            return error.exit_status
        case UsageError() | ApiError(status=400):
            return EXIT_USAGE
        case _:
            return EXIT_FAILED
