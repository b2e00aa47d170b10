"""Which controller a command talks to, and with which token.

The environment decides alone where it names a controller or a token: a token never goes to a
controller that it was not given for. Otherwise `fairlead login` has saved it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairlead.connections.addresses import normalized
from fairlead.errors import SettingsError
from fairlead.rest import ControllerClient

DEFAULT_URL = "http://127.0.0.1:8700"
CONTROLLER_VARIABLE = "FAIRLEAD_CONTROLLER"


# Not Structs, and read with `json` and `os.path`: each command needs them before its first request,
# and msgspec takes 9 ms to load, `pathlib` with what it needs 5.
class SavedController:
    """A controller that the user has logged in to; `url` may be several, separated by commas."""

    def __init__(self, *, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def __repr__(self) -> str:
        return f"SavedController(url={self.url!r})"


class SavedControllers:
    """`current` is the name of the one that commands talk to."""

    def __init__(
        self,
        *,
        current: str | None = None,
        controllers: Mapping[str, SavedController] | None = None,
    ) -> None:
        self.current = current
        self.controllers = dict(controllers or {})


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


def path() -> str:
    """Raises SettingsError."""
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base:
        home = os.path.expanduser("~")
        # A user without HOME and without an entry in passwd(5).
        if home == "~":
            raise SettingsError("your home folder is not known: set HOME")
        base = os.path.join(home, ".config")
    return os.path.join(base, "fairlead", "controllers.json")


def load() -> SavedControllers:
    """Return what was saved. Raises SettingsError for a file that cannot be read."""
    file = path()
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except FileNotFoundError:
        return SavedControllers()
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    import json

    try:
        return _saved(json.loads(content))
    # RecursionError: it is nested too deeply to be ours.
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file} is damaged ({error}); remove it and log in again") from None


def _saved(data: object) -> SavedControllers:
    """Raises ValueError."""
    if isinstance(data, dict):
        current, controllers = data.get("current"), data.get("controllers", {})
        if isinstance(current, str | None) and isinstance(controllers, dict):
            found = {name: _saved_one(name, one) for name, one in controllers.items()}
            return SavedControllers(current=current, controllers=found)
    raise ValueError("`current` or `controllers` is not as expected")


def _saved_one(name: str, data: object) -> SavedController:
    """Raises ValueError."""
    match data:
        case {"url": str() as url, "token": str() as token}:
            return SavedController(url=url, token=token)
    raise ValueError(f"{name} has no `url` and `token`")


def save(saved: SavedControllers) -> None:
    """Replace the file, which only its owner may read. Raises SettingsError."""
    import json
    from pathlib import Path

    target = Path(path())
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    controllers = {
        name: {"url": one.url, "token": one.token} for name, one in saved.controllers.items()
    }
    data = {"current": saved.current, "controllers": controllers}
    content = json.dumps(data, indent=2, ensure_ascii=False).encode()
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
    return read_token(path, "FAIRLEAD_TOKEN_FILE")


def read_token(path: str | os.PathLike[str], source: str) -> str | None:
    """Return the token in a file; `source` names the setting in errors. Raises SettingsError."""
    try:
        with open(path) as file:
            return clean_token(file.read(), source)
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
