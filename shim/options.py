"""Options of the shim's command that are more than a word: read, checked, refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from shim.errors import StartError
from shim.schemas import EngineKind, HostNetwork

LOG_LEVELS = ("debug", "info", "warning", "error")
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY")


def log_level(asked: str | None, environ: Mapping[str, str]) -> str:
    """As `logging` knows it. Raises StartError."""
    source, text = "--log-level", asked
    if text is None:
        source, text = "FAIRLEAD_LOG_LEVEL", environ.get("FAIRLEAD_LOG_LEVEL") or "info"
    if text not in LOG_LEVELS:
        raise StartError(f"{source} {text!r}: expected one of {', '.join(LOG_LEVELS)}")
    return text.upper()


def watermarks(text: str) -> tuple[float, float] | None:
    """Shares of `90:70`; None for `off`. Raises StartError."""
    if text == "off":
        return None
    high, colon, low = text.partition(":")
    if not (colon and high.isdecimal() and low.isdecimal() and 0 <= int(low) <= int(high) <= 100):
        raise StartError(f"--image-gc {text!r}: expected HIGH:LOW in percent (90:70), or off")
    return int(high) / 100, int(low) / 100


def volume_prefixes(texts: Sequence[str]) -> tuple[Path, ...]:
    """Raises StartError."""
    for text in texts:
        if not text.startswith("/") or ".." in Path(text).parts:
            raise StartError(f"--volume-prefix {text!r}: expected an absolute path without '..'")
    return tuple(Path(text) for text in texts)


def host_network(text: str, engine: EngineKind) -> HostNetwork:
    """Raises StartError where it could not be kept."""
    asked = HostNetwork(text)
    if asked is HostNetwork.NEVER and engine is EngineKind.PROCESS:
        raise StartError(
            "--host-network never: the tasks of the process engine have no network but the node's; "
            "use --engine docker"
        )
    return asked


def proxy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """In both spellings. Raises StartError for one with a password: whoever may look at a container
    would see it."""
    found: dict[str, str] = {}
    for name in _PROXY:
        value = environment.get(name) or environment.get(name.lower())
        if not value:
            continue
        if urlsplit(value).password is not None:
            raise StartError(f"--container-proxy: {name} holds a password, which tasks would see")
        found |= {name: value, name.lower(): value}
    return found


def make_data_folder(path: Path) -> None:
    """Raises StartError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        raise StartError(f"--data {path}: it, or what it lies in, is not a folder") from None
    except OSError as error:
        raise StartError(f"--data {path}: cannot be made: {error.strerror}") from None
