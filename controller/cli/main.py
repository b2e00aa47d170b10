"""The `fairlead` command's table of commands, and the one place where its failures end.

Whatever happens, a person reads one sentence; `FAIRLEAD_DEBUG=1` shows the traceback instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from cyclopts import App, CycloptsError

from controller import __version__
from controller.cli.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CliError,
    OutputError,
)

_COMMANDS = "controller.cli.commands"


def make_app() -> App:
    app = App(
        name="fairlead",
        help="Runs GPU work on machines that you own or rent.",
        version=__version__,
        result_action="return_value",
    )
    app.command(f"{_COMMANDS}.apply:apply", name="apply", help="Submit a run and follow it.")
    app.command(f"{_COMMANDS}.runs:ps", name="ps", help="List runs.")
    app.command(f"{_COMMANDS}.runs:inspect", name="inspect", help="Show all about a run.")
    app.command(f"{_COMMANDS}.scheduling:explain", name="explain", help="Tell why a run waits.")
    app.command(f"{_COMMANDS}.scheduling:plan", name="plan", help="Show where a run would go.")
    app.command(f"{_COMMANDS}.logs:logs", name="logs", help="Show a run's log.")
    app.command(f"{_COMMANDS}.runs:stop", name="stop", help="Stop a run.")
    app.command(f"{_COMMANDS}.ssh:ssh", name="ssh", help="Log in to a run's job.")
    app.command(
        f"{_COMMANDS}.ssh:ssh_config", name="ssh-config", help="Show what ~/.ssh/config needs."
    )
    app.command(
        f"{_COMMANDS}.ports:port_forward",
        name="port-forward",
        help="Lead local ports to ports of a run's job.",
    )
    app.command(f"{_COMMANDS}.runs:events", name="events", help="Tell what happened.")
    app.command(f"{_COMMANDS}.serve:controller", name="controller", help="Start a controller.")
    app.command(_node_app())
    return app


def _node_app() -> App:
    node = App(name="node", help="Add, list, drain, resume and remove nodes.")
    nodes = f"{_COMMANDS}.nodes"
    node.command(f"{nodes}:add", name="add", help="Add a node.")
    node.command(f"{nodes}:list_", name="list", help="List nodes.")
    node.command(f"{nodes}:drain", name="drain", help="Place nothing new on a node.")
    node.command(f"{nodes}:resume", name="resume", help="Place on a drained node again.")
    node.command(f"{nodes}:clear_gpu", name="clear-gpu", help="Offer a broken GPU again.")
    node.command(f"{nodes}:remove", name="remove", help="Forget a node that has no jobs.")
    node.command(f"{nodes}:key", name="key", help="Show the controller's public SSH key.")
    return node


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit status."""
    try:
        result = make_app()(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(f"{error}\nTry `fairlead --help`.", EXIT_USAGE)
    except OutputError as error:
        _silence_stdout()
        return _fail(str(error), error.exit_status)
    except CliError as error:
        return _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if not _keeps_unwritten():
            return _unforeseen(error)
        _silence_stdout()
        return _fail(str(OutputError(error)), EXIT_FAILED)
    except Exception as error:
        return _unforeseen(error)
    return result if isinstance(result, int) else 0


def _unforeseen(error: Exception) -> int:
    if os.environ.get("FAIRLEAD_DEBUG"):
        raise error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return _fail(
        f"this should not have happened: {text} (FAIRLEAD_DEBUG=1 shows where)", EXIT_FAILED
    )


def _fail(message: str, status: int) -> int:
    with suppress(OSError):
        sys.stderr.write(f"fairlead: {message}\n")
    return status


def _keeps_unwritten() -> bool:
    """A failed flush leaves the text where it was, so that the next one fails too."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _silence_stdout() -> None:
    """The interpreter flushes stdout once more when it ends; nobody reads that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
