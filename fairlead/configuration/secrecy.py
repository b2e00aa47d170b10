"""What may be shown of fields that can hold secrets.

A user should write secrets as `secrets`; many stand in `env` all the same, and are recognized by
their names and by how they look. In doubt a value counts as secret: the user can read what was
hidden by mistake in the own file. A field names its function here as `Field(public=…)`. The
functions get what the user wrote, which may have any shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fairlead.configuration.text.stored_secrets import is_reference

HIDDEN = "***"
_SECRET_OF_REPO = frozenset({"token", "private_key"})
_QUERY = re.compile(r"(?<=\?).+", re.DOTALL)
_QUERY_BEFORE_PATH = re.compile(r"(://[^?]*\?)[^:]+")
_WORDS = frozenset(
    [
        "APIKEY",
        "AUTH",
        "AUTHORIZATION",
        "BEARER",
        "COOKIE",
        "CRED",
        "CREDENTIAL",
        "CREDENTIALS",
        "CREDS",
        "DSN",
        "JWT",
        "KEY",
        "KEYS",
        "PASS",
        "PASSPHRASE",
        "PASSWD",
        "PASSWORD",
        "PASSWORDS",
        "PAT",
        "PRIVATE",
        "PWD",
        "SALT",
        "SECRET",
        "SECRETS",
        "SESSION",
        "SIGNATURE",
        "TOKEN",
        "WEBHOOK",
    ]
)
_ENDINGS = ("APIKEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
_NOT_LETTERS = re.compile(r"[^A-Z]+")
_LOOKS = re.compile(
    r"-----BEGIN|://[^/\s]*@"
    r"|[?&;](?:[a-z_-]{0,64}(?:key|pass|secret|sig|signature|token)[a-z_-]{0,64})="
    r"|\b(?:eyJ|gh[a-z]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA|AIza)|\b(?:Basic|Bearer) ",
    re.IGNORECASE,
)
"""Keys, logins in URLs, parameters that give access, and how well-known tokens begin."""
# It begins where a word does: tried at each letter of 128 KiB, the longest value, it took minutes.
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{20,}")
"""No word is so long and has digits."""


def may_be_secret(name: str, value: str) -> bool:
    """Return whether the variable's value is hidden. A reference to a stored secret is none."""
    if is_reference(value):
        return False
    words = _NOT_LETTERS.split(name.upper())
    if any(word in _WORDS or word.endswith(_ENDINGS) for word in words):
        return True
    return bool(_LOOKS.search(value) or _RANDOM.search(value))


def hidden_fields(shown: object, path: str = "") -> Iterator[str]:
    """Yield the fields whose values were hidden in what is shown of a configuration."""
    if isinstance(shown, Mapping):
        for name, one in shown.items():
            yield from hidden_fields(one, f"{path}.{name}" if path else str(name))
    elif isinstance(shown, list | tuple):
        for number, one in enumerate(shown):
            yield from hidden_fields(one, f"{path}[{number}]")
    elif isinstance(shown, str) and HIDDEN in shown:
        yield path


def names_of_secrets(secrets: object) -> object:
    """Hide the values; a reference to a stored secret has none."""
    if not isinstance(secrets, Mapping):
        return secrets
    return {name: value if _refers(value) else HIDDEN for name, value in secrets.items()}


def _refers(value: object) -> bool:
    return isinstance(value, str) and is_reference(value)


def login_without_password(login: object) -> object:
    names = login if isinstance(login, Mapping) else {}
    return {name: content if name == "username" else HIDDEN for name, content in names.items()}


def probes_without_headers(probes: object) -> object:
    if not isinstance(probes, list | tuple):
        return probes
    return [
        {**probe, "headers": hidden_headers(probe["headers"])}
        if isinstance(probe, Mapping) and "headers" in probe
        else probe
        for probe in probes
    ]


def repos_without_tokens(repos: object) -> object:
    return [_public_repo(repo) for repo in repos] if isinstance(repos, list | tuple) else repos


def _public_repo(repo: object) -> object:
    if isinstance(repo, str):
        return _QUERY_BEFORE_PATH.sub(rf"\1{HIDDEN}", repo)
    if not isinstance(repo, Mapping):
        return repo
    shown = {
        name: _public_url(content) if name == "url" else content for name, content in repo.items()
    }
    if isinstance(uploaded := repo.get("uploaded"), Mapping):
        shown["uploaded"] = {
            name: HIDDEN
            if name in _SECRET_OF_REPO and content is not None
            else (_public_url(content) if name == "url" else content)
            for name, content in uploaded.items()
        }
    return shown


def _public_url(url: object) -> object:
    """Hide the query of a URL: some hosts take tokens there."""
    return _QUERY.sub(HIDDEN, url) if isinstance(url, str) else url


def hidden_headers(headers: object) -> object:
    if isinstance(headers, Mapping):
        return dict.fromkeys(headers, HIDDEN)
    if isinstance(headers, list | tuple):
        return [
            {"name": one.get("name"), "value": HIDDEN} if isinstance(one, Mapping) else HIDDEN
            for one in headers
        ]
    return HIDDEN


def env_without_secrets(env: object) -> object:
    if isinstance(env, Mapping):
        return {name: _shown_value(name, value) for name, value in env.items()}
    if isinstance(env, list | tuple):
        entries = [str(entry).partition("=") for entry in env]
        return [f"{name}={_shown_value(name, value)}" for name, _, value in entries]
    return HIDDEN


def _shown_value(name: object, value: object) -> object:
    if isinstance(value, int | float):
        return HIDDEN if may_be_secret(str(name), "") else value
    if not isinstance(value, str) or may_be_secret(str(name), value):
        return HIDDEN
    return value
