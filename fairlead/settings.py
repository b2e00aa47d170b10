"""Which controller a command talks to, and with which token.

The environment decides alone where it names a controller or a token: a token never goes to a
controller that it was not given for. Otherwise `fairlead login` has saved it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fairlead.connections.addresses import normalized
from fairlead.errors import SettingsError
from fairlead.rest import ControllerClient

DEFAULT_URL = "http://127.0.0.1:8700"
CONTROLLER_VARIABLE = "FAIRLEAD_CONTROLLER"


class SavedController(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that the user has logged in to; `url` may be several, separated by commas."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"SavedController(url={self.url!r})"


class SavedControllers(msgspec.Struct, frozen=True, kw_only=True):
    """`current` is the name of the one that commands talk to."""

    current: str | None = None
    controllers: dict[str, SavedController] = {}


def client() -> ControllerClient:
    """Return the client of the chosen controller. Raises SettingsError for unusable settings."""
    url, token = chosen()
    return ControllerClient(url, token)


def token_for(url: str) -> str | None:
    """Return the token that was given for this controller: by the environment for its own URL, else
    by a login. Raises SettingsError."""
    wanted = _set_of(url)
    token = _token()
    if token and wanted <= _set_of(os.environ.get("FAIRLEAD_URL") or DEFAULT_URL):
        return token
    same = (one.token for one in load().controllers.values() if wanted <= _set_of(one.url))
    return next(same, None)


def _set_of(url: str) -> set[str]:
    return set(normalized(url).split(","))


def chosen() -> tuple[str, str | None]:
    """Return the URL and the token. Raises SettingsError."""
    url, token, name = os.environ.get("FAIRLEAD_URL"), _token(), os.environ.get(CONTROLLER_VARIABLE)
    if name and (url or token):
        raise SettingsError(
            f"{CONTROLLER_VARIABLE} and FAIRLEAD_URL or FAIRLEAD_TOKEN both say which controller is"
            " meant: unset one of them"
        )
    if token:
        return url or DEFAULT_URL, token
    if url:
        return url, token_for(url)
    saved = load()
    current = name or saved.current
    if current is None:
        return DEFAULT_URL, None
    found = named(saved, current)
    return found.url, found.token


def named(saved: SavedControllers, name: str) -> SavedController:
    """Return the saved controller. Raises SettingsError that lists those that there are."""
    found = saved.controllers.get(name)
    if found is None:
        names = ", ".join(sorted(saved.controllers)) or "none yet"
        raise SettingsError(f"you are not logged in to a controller {name!r} (now: {names})")
    return found


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "fairlead" / "controllers.json"


def load() -> SavedControllers:
    """Return what was saved. Raises SettingsError for a file that cannot be read."""
    try:
        return msgspec.json.decode(path().read_bytes(), type=SavedControllers)
    except FileNotFoundError:
        return SavedControllers()
    # Path.home raises RuntimeError for a user without HOME and without an entry in passwd(5).
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"cannot read {path()}: {getattr(error, 'strerror', error)}") from None
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{path()} is damaged ({error}); remove it and log in again") from None


def save(saved: SavedControllers) -> None:
    """Replace the file, which only its owner may read. Raises SettingsError."""
    target = path()
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    content = msgspec.json.format(msgspec.json.encode(saved), indent=2)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A command with the same pid may have been killed here. O_EXCL: the file is new, and nobody
        # else has it open.
        fresh.unlink(missing_ok=True)
        # O_EXCL and 0600 from the start: a token must never be readable for others, not even for a
        # moment.
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content + b"\n")
        fresh.replace(target)
    except OSError as error:
        # Part of a token must not stay behind, as when the disk is full.
        fresh.unlink(missing_ok=True)
        raise SettingsError(f"cannot write {target}: {error.strerror}") from None


def _token() -> str | None:
    token = os.environ.get("FAIRLEAD_TOKEN")
    path = os.environ.get("FAIRLEAD_TOKEN_FILE")
    if token or not path:
        return clean_token(token, "FAIRLEAD_TOKEN")
    return read_token(Path(path), "FAIRLEAD_TOKEN_FILE")


def read_token(path: Path, source: str) -> str | None:
    """Return the token in a file; `source` names the setting in errors. Raises SettingsError."""
    try:
        return clean_token(path.read_text(), source)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise SettingsError(f"{source}: cannot read {path}: {why}") from None


def clean_token(token: str | None, source: str) -> str | None:
    """Return the token without surrounding spaces. Raises SettingsError for what cannot be one."""
    if token is None or not token.strip():
        return None
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError(f"{source} is not a token: write printable ASCII without spaces")
    return token
