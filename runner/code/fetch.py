"""The runtime's own git, for images without one: a short program that runs as the job's user.

`fetch TARGET` reads an order (JSON) from standard input, `apply TARGET` a diff. A failure is one
line on standard error and exit status 1.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from fairlead.wire.job import Repo
from runner.code.errors import Failed

_TIMEOUT = 60.0
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


class Order(msgspec.Struct, frozen=True):
    repo: Repo
    target: str
    ssh: str | None = None
    login: tuple[str, str] | None = None


def fetch(order: Order) -> None:
    from dulwich.client import get_transport_and_path
    from dulwich.refs import HEADREF, Ref
    from dulwich.repo import Repo as GitRepo

    repo = order.repo
    url = repo.url or ""
    config = _config()
    secrets: dict[str, Any] = {}
    if order.login is not None:
        secrets = {"username": order.login[0], "password": order.login[1]}
    if order.ssh is not None:
        secrets["ssh_command"] = order.ssh
    client, path = get_transport_and_path(_plain(url), config=config, **secrets)
    with GitRepo.init(order.target) as made:
        _leave_pointers(made)
        remote_path = path.encode() if isinstance(path, str) else path
        depth = None if urlsplit(url).scheme == "file" else 1
        commit = _fetch_what_is_wanted(partial(client.fetch, remote_path, made), made, repo, depth)
        if repo.branch is not None:
            branch = Ref(b"refs/heads/" + repo.branch.encode())
            made.refs[branch] = commit
            made.refs.set_symbolic_ref(HEADREF, branch)
        else:
            made.refs.remove_if_equals(HEADREF, None)
            made.refs[HEADREF] = commit
        stored = made.get_config()
        stored.set((b"remote", b"origin"), b"url", _plain(url).encode())
        stored.set((b"remote", b"origin"), b"fetch", b"+refs/heads/*:refs/remotes/origin/*")
        stored.write_to_path()
        made.get_worktree().reset_index()


def _fetch_what_is_wanted(fetch: Any, made: Any, repo: Repo, depth: int | None) -> Any:
    """Fetch only that commit; from servers that give no single commits, fetch all."""
    from dulwich.errors import GitProtocolError

    try:
        result = fetch(lambda refs, depth=None: [_wanted(refs, repo)], depth=depth)
    # Many servers give only the commits that branches and tags point to (git-config(1),
    # uploadpack.allowReachableSHA1InWant).
    except GitProtocolError:
        if repo.commit is None:
            raise
    else:
        return _wanted(result.refs, repo)
    fetch(lambda refs, depth=None: _everything(refs))
    wanted = repo.commit.encode()
    if wanted not in made.object_store:
        raise Failed(f"it has no commit {repo.commit} (is it pushed?)")
    return wanted


def _everything(refs: Any) -> list[Any]:
    kinds = (b"refs/heads/", b"refs/tags/")
    return [at for name, at in refs.items() if name.startswith(kinds) and not name.endswith(b"^{}")]


def apply(target: str, diff: bytes) -> None:
    from dulwich.repo import Repo as GitRepo

    from runner.code.patch import Patching

    with GitRepo(target) as repo:
        _leave_pointers(repo)
        Patching(repo).apply(diff)


def _leave_pointers(repo: Any) -> None:
    """Leave git-lfs files as the commit has them, as a git without git-lfs does.

    dulwich would request each of them from the server without a login, and keep them in memory.
    """
    from dulwich.filters import FilterContext, FilterRegistry
    from dulwich.lfs import LFSFilterDriver, LFSStore

    registry = FilterRegistry(repo.get_config_stack(), repo)
    store = LFSStore.from_repo(repo, create=True)
    registry.register_factory("lfs", lambda _: LFSFilterDriver(store, skip_smudge=True))
    repo.filter_context = FilterContext(registry)


def _wanted(refs: Any, repo: Repo) -> Any:
    if repo.commit is not None:
        return repo.commit.encode()
    if repo.branch is None:
        names = [b"HEAD"]
    else:
        names = [prefix + repo.branch.encode() for prefix in (b"refs/heads/", b"refs/tags/")]
    for name in names:
        if refs.get(name) is not None:
            return refs[name]
    raise Failed(f"there is no branch or tag {repo.branch}" if repo.branch else "it is empty")


def _plain(url: str) -> str:
    """Return the URL without a login, which is passed separately."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    return urlunsplit(parts._replace(netloc=quote(parts.netloc.rpartition("@")[2], safe=":[]")))


def _config() -> Any:
    from dulwich.config import ConfigDict

    config = ConfigDict()
    config.set((b"http",), b"sslCAInfo", authorities().encode())
    config.set((b"http",), b"timeout", str(int(_TIMEOUT)).encode())
    return config


def authorities() -> str:
    """Return the certificates of the image, if it has any: its makers may have added their own."""
    for bundle in _BUNDLES:
        if Path(bundle).is_file():
            return bundle
    import certifi

    return certifi.where()


def main() -> int:
    what, target = sys.argv[1:]
    # An order has credentials, which everybody could read in argv (proc_pid_cmdline(5)).
    given = sys.stdin.buffer.read()
    try:
        if what == "fetch":
            fetch(msgspec.json.decode(given, type=Order))
        else:
            apply(target, given)
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:  # one line for the user, whatever the library raised
        text = str(error).strip() or type(error).__name__
        sys.stderr.write(f"{type(error).__name__}: {' '.join(text.split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
