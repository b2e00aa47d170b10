"""The table of the `fairlead` commands, and the one place where their failures end.

A failure is always one sentence; `FAIRLEAD_DEBUG=1` shows the traceback instead.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

from fairlead import daemons
from fairlead.cli import quick
from fairlead.cli.command_list import ABOUT, COMMANDS, GROUPS, asks_for_the_list, listed
from fairlead.cli.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    OutputError,
    exit_status_of,
)
from fairlead.errors import FairleadError, UsageError
from fairlead.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cyclopts import App

MIN_OBJECTS_OF_A_SEARCH = 20_000
_COMMANDS = "fairlead.cli.commands"


def make_app(arguments: Sequence[str] = ()) -> App:
    """Return the table of commands; of those that the daemons bring, only what these arguments ask
    for is looked up. Raises DaemonsMissing where it is not installed."""
    from cyclopts import App

    app = App(name="fairlead", help=ABOUT, version=__version__, result_action="return_value")
    for name, (target, about) in COMMANDS.items():
        app.command(f"{_COMMANDS}.{target}", name=name, help=about)
    if list(arguments[:1]) == ["controller"]:
        app.command(daemons.entry_point_of("controller"), name="controller")
    else:  # what has commands of its own is not imported for the list of commands
        app.command(_group("controller"))
    for made in (
        _job_app,
        _fleet_app,
        _machine_app,
        _provider_app,
        _offers_app,
        _user_app,
        _token_app,
        _service_app,
        _secret_app,
    ):
        app.command(made())
    app.command(_node_app(arguments))
    app.command(_gateway_app(arguments))
    return app


def _group(name: str) -> App:
    from cyclopts import App

    return App(name=name, help=GROUPS[name])


def _add_of_daemons(app: App, verb: str, arguments: Sequence[str], about: str) -> None:
    """Add a command of the daemons to its group: itself where it may be called or completed, else
    its name and its help."""
    words = [app.name[0], verb]
    target: str | Callable[[], None] = partial(_misplaced, words)
    if list(arguments[:2]) == words:
        target = daemons.entry_point_of(".".join(words))
    elif not arguments:
        # Listed all the same: a user without the daemons reads what to install.
        with suppress(daemons.DaemonsMissing):
            target = daemons.entry_point_of(".".join(words))
    app.command(target, name=verb, help=about)


def _misplaced(words: Sequence[str]) -> None:
    raise UsageError(f"write `fairlead {' '.join(words)}` without options between these words")


def _job_app() -> App:
    job = _group("job")
    for verb, about in (
        ("abort", "End a job's attempt at once; the job comes back."),
        ("abandon", "Let the run go on without a job."),
        ("interrupt", "Ask a job to end by itself."),
    ):
        job.command(f"{_COMMANDS}.runs.actions:{verb}_job", name=verb, help=about)
    return job


def _node_app(arguments: Sequence[str]) -> App:
    node = _group("node")
    nodes = f"{_COMMANDS}.nodes.inventory"
    node.command(f"{nodes}:add", name="add", help="Add a node.")
    _add_of_daemons(node, "install", arguments, "Make a host a node, over SSH.")
    _add_of_daemons(node, "upgrade", arguments, "Upgrade nodes, a batch at a time.")
    registering = f"{_COMMANDS}.nodes.user_data"
    node.command(
        f"{registering}:user_data",
        name="user-data",
        help="Announce a node and print its user-data.",
    )
    node.command(
        f"{registering}:register", name="register", help="Give an expected node its address."
    )
    node.command(f"{nodes}:list_", name=["list", "ls"], help="List nodes.")
    node.command(f"{nodes}:show", name="show", help="Show a node in full.")
    node.command(f"{nodes}:set_", name="set", help="Change a node's attributes or fleet.")
    node.command(f"{nodes}:drain", name="drain", help="Empty a node: place nothing new there.")
    node.command(f"{nodes}:resume", name="resume", help="End a drain.")
    node.command(f"{nodes}:cordon", name="cordon", help="Stop new placements; running jobs stay.")
    node.command(f"{nodes}:uncordon", name="uncordon", help="End a cordon.")
    node.command(f"{nodes}:tasks", name="tasks", help="List a node's unknown tasks.")
    node.command(f"{nodes}:stop_task", name="stop-task", help="Stop an unknown task.")
    node.command(f"{nodes}:doctor", name="doctor", help="Check what jobs need on a node.")
    node.command(f"{nodes}:clear_gpu", name="clear-gpu", help="Return a repaired GPU to use.")
    node.command(f"{nodes}:remove", name="remove", help="Remove a node that has no jobs.")
    node.command(f"{nodes}:key", name="key", help="Show the controller's public SSH key.")
    return node


def _gateway_app(arguments: Sequence[str]) -> App:
    gateway = _group("gateway")
    gateways = f"{_COMMANDS}.services.gateways"
    gateway.command(f"{gateways}:add", name="add", help="Add a gateway.")
    gateway.command(f"{gateways}:list_", name="list", help="List gateways.")
    gateway.command(f"{gateways}:show", name="show", help="Show a gateway.")
    _add_of_daemons(gateway, "run", arguments, "Run a gateway's agent.")
    _add_of_daemons(gateway, "setup", arguments, "Make this machine a gateway.")
    gateway.command(f"{gateways}:remove", name="remove", help="Remove a gateway without services.")
    return gateway


def _fleet_app() -> App:
    fleet = _group("fleet")
    fleets = f"{_COMMANDS}.nodes.fleets"
    fleet.command(f"{fleets}:add", name="add", help="Add a fleet.")
    fleet.command(f"{fleets}:list_", name="list", help="List fleets.")
    fleet.command(f"{fleets}:set_", name="set", help="Change a fleet.")
    fleet.command(f"{fleets}:remove", name="remove", help="Remove a fleet without nodes.")
    return fleet


def _machine_app() -> App:
    machine = _group("machine")
    machines = f"{_COMMANDS}.nodes.machines"
    machine.command(f"{machines}:list_", name="list", help="List rented machines.")
    help = "List machines at providers for which there is no record."
    machine.command(f"{machines}:orphans", name="orphans", help=help)
    help = "End machines at a provider for which there is no record."
    machine.command(f"{machines}:end_orphans", name="end-orphans", help=help)
    help = "End the record of a machine whose account nobody uses any more."
    machine.command(f"{machines}:forget", name="forget", help=help)
    return machine


def _provider_app() -> App:
    provider = _group("provider")
    help = "Check a provider of machines."
    provider.command(f"{_COMMANDS}.nodes.providers:check", name="check", help=help)
    return provider


def _offers_app() -> App:
    offers = _group("offers")
    providers = f"{_COMMANDS}.nodes.providers"
    help = "List what a provider rents, and say how old its prices are."
    offers.command(f"{providers}:offers_list", name="list", help=help)
    help = "Read types and prices from a provider's API."
    offers.command(f"{providers}:offers_refresh", name="refresh", help=help)
    return offers


def _user_app() -> App:
    user = _group("user")
    users = f"{_COMMANDS}.account.users"
    user.command(f"{users}:add_user", name="add", help="Add a user and show a first token.")
    user.command(f"{users}:list_users", name="list", help="List users.")
    user.command(f"{users}:show_user", name="show", help="Show a user.")
    user.command(f"{users}:set_user", name="set", help="Change a user's role.")
    user.command(f"{users}:grant", name="grant", help="Set the bands that a user may use.")
    user.command(f"{users}:remove_user", name="remove", help="Remove a user.")
    return user


def _token_app() -> App:
    token = _group("token")
    users = f"{_COMMANDS}.account.users"
    token.command(f"{users}:add_token", name="add", help="Make another token and show it.")
    token.command(f"{users}:list_tokens", name="list", help="List tokens.")
    token.command(f"{users}:revoke_token", name="revoke", help="Revoke a token.")
    return token


def _service_app() -> App:
    service = _group("service")
    from cyclopts import App

    key = App(name="key", help="Add, list and revoke keys that open one service alone.")
    keys = f"{_COMMANDS}.services.keys"
    key.command(f"{keys}:add", name="add", help="Make a key of a service and show it.")
    key.command(f"{keys}:list_", name="list", help="List the keys of your services.")
    key.command(f"{keys}:revoke", name="revoke", help="Revoke a key.")
    service.command(key)
    services = f"{_COMMANDS}.services.deployments"
    service.command(f"{services}:show", name="show", help="Show a service and its replicas.")
    service.command(f"{services}:history", name="history", help="List a service's deployments.")
    service.command(f"{services}:rollback", name="rollback", help="Go back to a deployment.")
    return service


def _secret_app() -> App:
    secret = _group("secret")
    secrets = f"{_COMMANDS}.account.secrets"
    secret.command(f"{secrets}:set_secret", name="set", help="Store a secret.")
    secret.command(f"{secrets}:list_secrets", name="list", help="List secrets, without values.")
    secret.command(f"{secrets}:delete_secret", name="delete", help="Delete a secret.")
    secret.command(f"{secrets}:rotate_key", name="rotate-key", help="Seal secrets with a new key.")
    return secret


def main() -> None:
    _open_closed_descriptors()
    # A short command makes no cycles worth a search: searches, the last of them at the end of the
    # interpreter, took 20 of 110 ms of the CPU time of `fairlead apply` (`./dev bench command`).
    gc.set_threshold(MIN_OBJECTS_OF_A_SEARCH)
    status = run(sys.argv[1:])
    gc.freeze()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    _tolerate_encodings()
    try:
        if asks_for_the_list(arguments):
            sys.stdout.write(listed())
            result: object = 0
        else:
            result = _called(arguments)
        # Here and not at the interpreter's end, where a full disk or a closed pipe would print a
        # traceback.
        sys.stdout.flush()
    except _Usage as error:
        return _fail(str(error), EXIT_USAGE)
    except ImportError as error:
        # The client is installed without what daemons need. Any other missing module is a fault of
        # ours.
        if not daemons.is_of_an_extra(error):
            return _unforeseen(error)
        return _fail(daemons.missing(*_command_and_extra(arguments)), EXIT_FAILED)
    except OutputError as error:
        _silence_stdout()
        return _fail(str(error), error.exit_status)
    except FairleadError as error:
        return _fail(str(error), exit_status_of(error))
    except UnicodeEncodeError as error:
        # An argument that is no UTF-8 has lone surrogates, which cannot be encoded (PEP 383).
        unreadable = next((one for one in arguments if not one.isprintable()), None)
        if unreadable is None:
            return _unforeseen(error)
        return _fail(f"{unreadable!r} is not UTF-8", EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Its reader has enough, as `head` has.
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        # A full disk (ENOSPC): the buffer of stdout keeps what write(2) did not take.
        if not _keeps_unwritten():
            return _unforeseen(error)
        _silence_stdout()
        return _fail(str(OutputError(error)), EXIT_FAILED)
    except Exception as error:
        return _unforeseen(error)
    return result if isinstance(result, int) else 0


class _Usage(Exception):
    """The arguments are wrong."""


def _called(arguments: Sequence[str]) -> object:
    if (quickly := quick.parsed(arguments)) is not None:
        target, given = quickly
        return quick.function_at(target)(**given)
    from cyclopts import CycloptsError, UnusedCliTokensError

    try:
        return make_app(list(arguments))(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        command = " ".join(("fairlead", *(error.command_chain or ())))
        message = str(error)
        if isinstance(error, UnusedCliTokensError):
            message = f"too many arguments: {' '.join(error.unused_tokens or ())}"
        raise _Usage(f"{message}\nTry `{command} --help`.") from None


def _command_and_extra(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the command that the user gave, and the extra that brings its libraries."""
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    of_a_gateway = words[:1] == ["gateway"]
    named = words[: 2 if of_a_gateway else 1]
    return " ".join(("fairlead", *named)), "gateway" if of_a_gateway else "controller"


def _open_closed_descriptors() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that the caller closed (`>&-`).

    A connection would get its number otherwise, and the output would go to the controller.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _tolerate_encodings() -> None:
    """Write characters that the encoding lacks as escapes, and read unknown bytes as marks.

    PYTHONIOENCODING or the locale sets that encoding. One such character must not lose the rest.
    """
    for stream, errors in (
        (sys.stdin, "replace"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _unforeseen(error: Exception) -> int:
    if os.environ.get("FAIRLEAD_DEBUG"):
        raise error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return _fail(f"internal error: {text}; set FAIRLEAD_DEBUG=1 for the traceback", EXIT_FAILED)


def _fail(message: str, status: int) -> int:
    # stderr may be closed, or a pipe whose reader is gone; the status still tells of the failure.
    with suppress(OSError):
        sys.stderr.write(f"fairlead: {message}\n")
    return status


def _keeps_unwritten() -> bool:
    """Return whether stdout keeps data that it could not write: then each later flush fails too."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _silence_stdout() -> None:
    """Send stdout to /dev/null, because the interpreter flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
