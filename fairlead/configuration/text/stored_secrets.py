"""`${{ secrets.NAME }}` stands for a secret that its user stored with the controller.

It may stand in `env`, `secrets`, `registry_auth` and the credentials of `repos`, and nowhere else.
A run is stored with the expression; the value is filled in when the job is sent to its node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from fairlead.model.spec import JobRepo, JobSpec

NAME_ALLOWED = "a letter or underscore, then up to 63 letters, digits and underscores"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_EXPRESSION = re.compile(r"\$\{\{[^{}]*\}\}")
"""An expression of any kind, as dstack and GitHub have them."""
_SECRET = re.compile(r"\$\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_]{0,63})\s*\}\}", re.ASCII)
_ALLOWED_PATH = re.compile(
    r"(?:(?:(?:groups|replicas)\[\d+\]\.)?env[.\[].*|secrets\..*|registry_auth\.(?:username|password)"
    r"|repos\[\d+\]\.(?:token|private_key))",
    re.ASCII | re.DOTALL,
)
"""The fields in which the expression may stand."""
_PATH_OF_PARAMETERS = re.compile(
    r"(?:(?:groups|replicas)\[\d+\]\.)?"
    r"(?:env[.\[].*|(?:commands|setup)\[\d+\]|entrypoint(?:\[\d+\])?)",
    re.ASCII | re.DOTALL,
)
_NAMED = re.compile(r"\$\{\{\s*([a-z]+)\.([A-Za-z_][A-Za-z0-9_]{0,63})\s*\}\}", re.ASCII)
_IN_GROUP = r"(?:(?:groups|replicas)\[\d+\]\.)?"
_IN_A_SHELL = re.compile(rf"{_IN_GROUP}(?:commands|setup|init)\[\d+\]", re.ASCII)
_IN_A_VOLUME = re.compile(rf"{_IN_GROUP}volumes\[\d+\].*", re.ASCII | re.DOTALL)
_FROM_ENVIRONMENT = re.compile(r"registry_auth\.\w+|secrets\..*", re.ASCII | re.DOTALL)
_VARIABLES = {
    "node_rank": "FAIRLEAD_NODE_RANK",
    "nodes_num": "FAIRLEAD_NODES_NUM",
    "job_num": "FAIRLEAD_JOB_INDEX",
    "name": "FAIRLEAD_RUN_NAME",
    "run_name": "FAIRLEAD_RUN_NAME",
    "id": "FAIRLEAD_RUN_ID",
    "run_id": "FAIRLEAD_RUN_ID",
}
"""Our variables for what dstack's expressions say of a run and its jobs."""
ValueOf = Callable[[str], str]
"""Returns the value of the secret with this name."""


def is_secret_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_reference(text: str) -> bool:
    """Return whether the text is one secret's expression and nothing else."""
    return _SECRET.fullmatch(text) is not None


def filled(text: str, value_of: ValueOf) -> str:
    """Return the string with the values of its secrets. Raises what `value_of` raises."""
    # One pass: a value that looks like an expression stays as its user stored it.
    return _SECRET.sub(lambda match: value_of(match[1]), text)


def problem_of(text: str, path: str) -> str | None:
    """Return what is wrong with the expressions of the string at this field; None: nothing."""
    for found in _EXPRESSION.findall(text):
        named = _NAMED.fullmatch(found)
        if is_reference(found):
            if not _ALLOWED_PATH.fullmatch(path):
                return _misplaced(found, path)
        elif found.removeprefix("${{").lstrip().startswith("params."):
            if not _PATH_OF_PARAMETERS.fullmatch(path):
                return (
                    "cannot hold a parameter: it may stand in commands, setup, entrypoint and env"
                )
        elif named is None:
            return "holds ${{ … }}, which is not resolved here"
        else:
            instead = _instead(named[1], named[2], path)
            return f"holds ${{{{ {named[1]}.{named[2]} }}}}, which is not resolved here{instead}"
    return None


def _misplaced(reference: str, path: str) -> str:
    if not _IN_A_SHELL.fullmatch(path):
        return "cannot hold a stored secret"
    name = _SECRET.sub(r"\1", reference)
    return f"cannot hold a stored secret: set {name} to {reference} in env, and write ${name} here"


def _instead(space: str, name: str, path: str) -> str:
    """Return what to write instead of the expression at this field; empty: nothing is known."""
    in_a_shell = _IN_A_SHELL.fullmatch(path) is not None
    if space == "env":
        if in_a_shell:
            return f": write ${name}"
        whose = f": write ${{{name}}}, a variable of your environment"
        return whose if _FROM_ENVIRONMENT.fullmatch(path) else f": write the value of {name} itself"
    if space == "run" and name == "args":
        return ": write $ARGS, name ARGS in env, and give it with `-e ARGS=…`" if in_a_shell else ""
    if space not in ("dstack", "run"):
        return ""
    if _IN_A_VOLUME.fullmatch(path):
        return ": leave it out, since each node has a folder of its own for a named volume"
    return f": write ${_VARIABLES[name]}" if in_a_shell and name in _VARIABLES else ""


def names_of(spec: JobSpec) -> dict[str, str]:
    """Return the secrets that the job names, each with the first field that names it."""
    found: dict[str, str] = {}
    for field, text in _texts(spec):
        for name in _SECRET.findall(text):
            found.setdefault(name, field)
    return found


def resolved(spec: JobSpec, value_of: ValueOf) -> tuple[JobSpec, tuple[str, ...]]:
    """Return the spec with the values, and all values, which logs must not show.

    A variable of `env` that holds a secret becomes one of `secrets`: it reaches the commands, but
    no SSH session. Raises what `value_of` raises.
    """
    names = names_of(spec)
    if not names:
        return spec, ()
    values = {name: value_of(name) for name in names}

    def fill(text: str) -> str:
        return _SECRET.sub(lambda match: values[match[1]], text)

    # One pass: a value that looks like an expression stays as its user stored it.
    secret = {name: fill(text) for name, text in spec.env.items() if _SECRET.search(text)}
    auth = spec.registry_auth
    return replace(
        spec,
        env={name: text for name, text in spec.env.items() if name not in secret},
        secrets={**secret, **{name: fill(text) for name, text in spec.secrets.items()}},
        registry_auth=None
        if auth is None
        else replace(auth, username=fill(auth.username), password=fill(auth.password)),
        repos=tuple(_with_credentials(repo, fill) for repo in spec.repos),
    ), tuple(values.values())


def _with_credentials(repo: JobRepo, fill: ValueOf) -> JobRepo:
    key = repo.private_key
    if key is not None and is_reference(key):
        key = fill(key).rstrip("\n") + "\n"  # OpenSSH refuses a key without its last line's end
    return replace(repo, token=None if repo.token is None else fill(repo.token), private_key=key)


def _texts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield from ((f"env.{name}", text) for name, text in spec.env.items())
    yield from ((f"secrets.{name}", text) for name, text in spec.secrets.items())
    if spec.registry_auth is not None:
        yield "registry_auth.username", spec.registry_auth.username
        yield "registry_auth.password", spec.registry_auth.password
    for number, repo in enumerate(spec.repos):
        yield f"repos[{number}].token", repo.token or ""
        yield f"repos[{number}].private_key", repo.private_key or ""
