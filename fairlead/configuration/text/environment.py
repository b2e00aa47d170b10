"""Completes a file's data from its user's environment, which only the submitting side knows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.configuration.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_VARIABLE_OF_DSTACK = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", re.ASCII)


def with_environment(
    data: object, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> object:
    """Return the data completed from the user's environment.

    It sets a value for each `env` entry that is only a name, replaces `${NAME}` in `registry_auth`
    and `secrets`, and applies `overrides` to `env`. Raises ConfigurationError for a variable that
    is not set. Data of a wrong shape stays as it is: `parse` reports it.
    """
    if not isinstance(data, dict):
        return data
    filled = dict(data)
    env = _filled_env(filled.get("env"), environ)
    if overrides and (env is None or isinstance(env, dict)):
        env = {**(env or {}), **overrides}
    if env is not None:
        filled["env"] = env
    for kind in ("groups", "replicas"):
        if isinstance(groups := filled.get(kind), list):
            filled[kind] = [
                _filled_group(group, f"{kind}[{number}].", environ, overrides)
                for number, group in enumerate(groups)
            ]
    if "secrets" in filled:
        filled["secrets"] = _filled_secrets(filled["secrets"], environ)
    if isinstance(filled.get("registry_auth"), dict):
        filled["registry_auth"] = {
            name: _credential(content, f"registry_auth.{name}", environ, env)
            for name, content in filled["registry_auth"].items()
        }
    return filled


def _filled_group(
    group: object, location: str, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> object:
    """Return the group without overridden variables: these stand at the top level, and a group's
    own value would win."""
    if not isinstance(group, dict) or "env" not in group:
        return group
    env = _filled_env(group["env"], environ, location)
    if isinstance(env, dict):
        env = {name: value for name, value in env.items() if name not in overrides}
    return {**group, "env": env}


def _filled_env(env: object, environ: Mapping[str, str], location: str = "") -> object:
    if not isinstance(env, list) or not all(isinstance(entry, str) for entry in env):
        return env
    content: dict[str, str] = {}
    for number, entry in enumerate(env):
        name, equals, value = entry.partition("=")
        if not equals:
            value = _variable(name, f"{location}env[{number}]", environ)
        if name in content:
            raise ConfigurationError(f"{location}env[{number}]", f"gives {name[:60]} a second time")
        content[name] = value
    return content


def _filled_secrets(secrets: object, environ: Mapping[str, str]) -> object:
    if isinstance(secrets, list) and all(isinstance(name, str) for name in secrets):
        return {
            name: _variable(name, f"secrets[{number}]", environ)
            for number, name in enumerate(secrets)
        }
    if isinstance(secrets, dict):
        return {
            name: _substituted(content, f"secrets.{name}", environ)
            for name, content in secrets.items()
        }
    return secrets


def _substituted(content: object, field: str, environ: Mapping[str, str]) -> object:
    match = _VARIABLE.fullmatch(content) if isinstance(content, str) else None
    return content if match is None else _variable(match[1], field, environ)


def _credential(content: object, field: str, environ: Mapping[str, str], env: object) -> object:
    """Return a login's part; dstack's `${{ env.NAME }}` is a variable of the run."""
    match = _VARIABLE_OF_DSTACK.fullmatch(content) if isinstance(content, str) else None
    if match is None:
        return _substituted(content, field, environ)
    own = env.get(match[1]) if isinstance(env, dict) else None
    return own if isinstance(own, str) else _variable(match[1], field, environ)


def _variable(name: str, field: str, environ: Mapping[str, str]) -> str:
    try:
        return environ[name]
    except KeyError:
        raise ConfigurationError(
            field, f"{name[:60]!r} is not set in your environment: set it, or give a value"
        ) from None
