"""Asks a registry for the content of an image that the node has already.

The engine compares digests alone: where a registry names an image's id, dockerd takes the content
from the node and fetches nothing from there (moby, distribution/pull_v2.go: `ImageStore.Get`
before the layers). So whoever knows the id of another user's private image, and runs a registry,
would get it. An image's id is the SHA-256 of its configuration, or of its manifest; a registry that
serves a document with this hash has the document, not only the name of it.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from fairlead.wire.shim import RegistryAuth
from shim.engines.base import ImageError, ImageProblem

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_MAX_BYTES = 8 << 20
"""Of one document. dockerd itself reads manifests of at most 4 MiB."""
_MAX_PLATFORMS = 32
_SECONDS = 10.0
_HUB = "registry-1.docker.io"
_CERTIFICATES = Path("/etc/docker/certs.d")
_SYSTEM = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Refused(Exception):
    """The registry did not give a document; the message says why."""


def prove_any(
    repository: str,
    digests: Sequence[str],
    image_id: str,
    auth: RegistryAuth | None,
    settings: Mapping[str, Any],
) -> None:
    """Do as `prove` with the first of these digests that shows it. Raise the last one's error."""
    *others, last = digests
    for digest in others:
        # Another repository may have compressed the same image into a manifest that this registry
        # lacks.
        with suppress(ImageError):
            return prove(repository, digest, image_id, auth, settings)
    return prove(repository, last, image_id, auth, settings)


def prove(
    repository: str,
    digest: str,
    image_id: str,
    auth: RegistryAuth | None,
    settings: Mapping[str, Any],
) -> None:
    """Raise ImageError unless the registry serves the document that the image's id is the hash of.

    `repository`: as `repository_of` returns it; `digest`: of the manifest or index there;
    `settings`: RegistryConfig of the engine's info. Blocking.
    """
    host, name = _host_and_name(repository)
    try:
        with _Registry(host, name, auth, settings) as registry:
            documents = registry.documents(digest, image_id)
            if any(_hash(one) == image_id for one in documents):
                return
            raise _Refused(f"it serves nothing of the image {image_id[:19]}")
    except (_Refused, requests.RequestException, ValueError, RecursionError) as error:
        # A hostile document may nest deeper than Python's parser recurses (RecursionError).
        why = str(error) if isinstance(error, _Refused) else type(error).__name__
        raise ImageError(
            f"{repository} has the same content as an image that another run pulled with "
            f"credentials from elsewhere, and its registry did not show that it has it ({why}): "
            "name the image as that registry does, with registry_auth",
            ImageProblem.REFUSED,
        ) from None


def _host_and_name(repository: str) -> tuple[str, str]:
    """Return the registry's host and the name there."""
    host, slash, name = repository.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return host, name
    # Docker Hub has the official images below library/.
    return _HUB, repository if slash else f"library/{repository}"


def _hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Registry:
    def __init__(
        self, host: str, name: str, auth: RegistryAuth | None, settings: Mapping[str, Any]
    ) -> None:
        self._auth = None if auth is None else (auth.username, auth.password)
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc of the shim's user is nobody's credentials
        self._name = name
        own = _CERTIFICATES / host / "ca.crt"
        system = next((one for one in _SYSTEM if Path(one).exists()), True)
        self._session.verify = str(own) if own.exists() else system
        self._bases = [f"https://{host}"]
        if _is_insecure(host, settings):
            self._session.verify = False
            self._bases.append(f"http://{host}")

    def __enter__(self) -> _Registry:
        return self

    def __exit__(self, *args: object) -> None:
        self._session.close()

    def documents(self, digest: str, image_id: str) -> Iterator[bytes]:
        """Yield the verified documents between the digest and the image's configuration."""
        first = self._manifest(digest)
        yield first
        for manifest in (first, *self._platforms(first)):
            if manifest is not first:
                yield manifest
            config = json.loads(manifest).get("config")
            if isinstance(config, dict) and config.get("digest") == image_id:
                yield self._get(f"blobs/{image_id}", "*/*")

    def _platforms(self, index: bytes) -> Iterator[bytes]:
        # The registry may be an attacker's: its index decides how many requests this makes.
        listed = json.loads(index).get("manifests") or []
        if not isinstance(listed, list):
            raise _Refused("its index is none")
        for one in listed[:_MAX_PLATFORMS]:
            yield self._manifest(str(one.get("digest")) if isinstance(one, dict) else "")

    def _manifest(self, digest: str) -> bytes:
        if not _DIGEST.fullmatch(digest):
            raise _Refused("it names no digest")
        content = self._get(f"manifests/{digest}", _MANIFESTS)
        if _hash(content) != digest:
            raise _Refused("its manifest is not the one that it names")
        if not isinstance(json.loads(content), dict):
            raise _Refused("its manifest is none")
        return content

    def _get(self, path: str, accept: str) -> bytes:
        for base in self._bases:
            try:
                return self._read(f"{base}/v2/{self._name}/{path}", accept)
            except (requests.exceptions.SSLError, requests.exceptions.ConnectionError):
                # An insecure registry is asked with TLS first and then without, as Docker does
                # (dockerd(8)).
                if base == self._bases[-1]:
                    raise
        raise _Refused("it cannot be reached")

    def _read(self, url: str, accept: str) -> bytes:
        answer = self._ask(url, accept, {})
        if answer.status_code == 401:
            answer.close()
            answer = self._ask(url, accept, self._login(answer.headers))
        with answer:
            if answer.status_code != 200:
                raise _Refused(f"it answers {answer.status_code}")
            return _content(answer)

    def _ask(self, url: str, accept: str, more: Mapping[str, Any]) -> requests.Response:
        # Accept-Encoding: a digest is that of the bytes, not of what gzip makes of them.
        headers = {"Accept": accept, "Accept-Encoding": "identity", **more}
        return self._session.get(url, headers=headers, stream=True, timeout=_SECONDS)

    def _login(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the header that the registry wants, from its challenge."""
        kind, _, rest = headers.get("WWW-Authenticate", "").partition(" ")
        if kind.lower() == "basic" and self._auth is not None:
            login = base64.b64encode(":".join(self._auth).encode()).decode()
            return {"Authorization": f"Basic {login}"}
        challenge = dict(_CHALLENGE.findall(rest))
        realm = challenge.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            raise _Refused("it refuses these credentials")
        query = {key: challenge[key] for key in ("service", "scope") if key in challenge}
        with self._session.get(
            realm, params=query, auth=self._auth, stream=True, timeout=_SECONDS
        ) as answer:
            given = json.loads(_content(answer)) if answer.status_code == 200 else None
        if not isinstance(given, dict):
            raise _Refused("it refuses these credentials")
        # Registries use either name; access_token is that of OAuth 2.0 (distribution's token
        # authentication).
        return {"Authorization": f"Bearer {given.get('token') or given.get('access_token')}"}


def _content(answer: requests.Response) -> bytes:
    """Return the body. An attacker's would fill the shim's memory: it is cut off."""
    content = b""
    for part in answer.iter_content(1 << 16):
        content += part
        if len(content) > _MAX_BYTES:
            raise _Refused("its answer is too long")
    return content


def _is_insecure(host: str, settings: Mapping[str, Any]) -> bool:
    """Return whether the engine takes this registry without TLS."""
    index = (settings.get("IndexConfigs") or {}).get(host)
    if index is not None:
        return not index.get("Secure", True)
    bare = host.rpartition(":")[0] or host
    # dockerd counts 127.0.0.0/8 as insecure without being told (dockerd(8)).
    if bare == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare.strip("[]"))
    except ValueError:
        return False
    nets = settings.get("InsecureRegistryCIDRs") or ()
    return any(address in ipaddress.ip_network(str(one)) for one in nets)
