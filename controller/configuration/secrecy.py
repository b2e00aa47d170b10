"""Which values of environment variables may be secret, by their names and by how they look.

A user should write secrets as `secrets`; many stand in `env` all the same. In doubt a value counts
as secret: what is hidden by mistake can be read in the user's own file.
"""

from __future__ import annotations

import re

from controller.configuration.stored_secrets import is_reference

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
    r"-----BEGIN|://[^/\s]*@|[?&;](?:[a-z_-]*(?:key|pass|secret|sig|signature|token)[a-z_-]*)="
    r"|\b(?:eyJ|gh[a-z]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA|AIza)|\b(?:Basic|Bearer) ",
    re.IGNORECASE,
)
"""Keys, logins in URLs, parameters that give access, and how well-known tokens begin."""
_RANDOM = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{20,}")
"""No word is so long and has digits."""


def may_be_secret(name: str, value: str) -> bool:
    """Return whether the variable's value is hidden. A reference to a stored secret is none."""
    if is_reference(value):
        return False
    words = _NOT_LETTERS.split(name.upper())
    if any(word in _WORDS or word.endswith(_ENDINGS) for word in words):
        return True
    return bool(_LOOKS.search(value) or _RANDOM.search(value))
