"""Listens for users, and for nodes that have just booted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from ipaddress import ip_address

import msgspec
from aiohttp import web

from common.links.errors import why_unreachable
from common.sockets import held_by_systemd
from controller.daemon.lease import end
from controller.daemon.options import CannotStart, Options
from controller.service.machines.user_data import JoinPoint
from controller.tls import CertificateUnusable, ServerCertificate, own_certificate

log = logging.getLogger(__name__)


def _is_tcp(held: socket.socket) -> bool:
    return held.type == socket.SOCK_STREAM and held.family in (socket.AF_INET, socket.AF_INET6)


def held_socket(options: Options) -> socket.socket | None:
    """Return the socket of the API's port that systemd holds; None: it holds none at all. Raises
    CannotStart."""
    held = held_by_systemd(lambda one: _is_tcp(one) and one.getsockname()[1] == options.port)
    if held is None and (other := held_by_systemd(_is_tcp)) is not None:
        port = other.getsockname()[1]
        raise CannotStart(
            f"systemd holds port {port} for this controller (ListenStream of its .socket unit), "
            f"and --listen names {options.port}: give both the same port"
        )
    return held


async def bound_socket(options: Options) -> socket.socket:
    """Return a socket that listens at the API's address. Raises CannotStart."""
    if (held := held_socket(options)) is not None:
        return held

    def bound() -> socket.socket:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host, options.port), family=family, backlog=1024)

    try:
        return await asyncio.to_thread(bound)
    # A name can resolve to no address of this machine (EADDRNOTAVAIL), and a port may be taken or
    # below 1024.
    except OSError as error:
        raise _cannot_listen(options, error) from error


async def certificate_of(
    options: Options, closing: contextlib.AsyncExitStack
) -> ServerCertificate | None:
    """Return the certificate of the API, renewed from its files until `closing` closes. Raises
    CannotStart."""
    if options.tls is None:
        return None
    try:
        certificate = ServerCertificate(options.tls)
    except CertificateUnusable as error:
        raise CannotStart(f"--tls-cert, --tls-key: {error}") from error
    closing.push_async_callback(end, asyncio.create_task(certificate.watch()))
    return certificate


async def listen(
    api: web.AppRunner,
    options: Options,
    certificate: ServerCertificate | None,
    listening: socket.socket | None,
) -> str:
    await api.setup()
    context = None if certificate is None else certificate.context
    if listening is None:
        site: web.BaseSite = web.TCPSite(api, options.host, options.port, ssl_context=context)
    else:
        # A copy: connections that wait in the socket's queue are not lost between the two servers.
        site = web.SockSite(api, listening.dup(), ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise _cannot_listen(options, error) from error
    host, port = api.addresses[0][:2]
    if context is None and not ip_address(host).is_loopback:
        log.warning(
            "everybody between here and a user can read tokens and logs: %s:%s has no TLS; give"
            " --tls-cert and --tls-key, or listen on 127.0.0.1 behind a reverse proxy",
            host,
            port,
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if context is None else 'https'}://{shown}:{port}"


def _cannot_listen(options: Options, error: OSError) -> CannotStart:
    return CannotStart(
        f"cannot listen on {options.host}:{options.port} ({why_unreachable(error)}); "
        "give another address with --listen HOST:PORT"
    )


class Join(msgspec.Struct, frozen=True):
    """Where nodes tell their address, and the TLS with which that is served."""

    point: JoinPoint
    context: ssl.SSLContext


async def join_point(options: Options) -> Join | None:
    """Raises CertificateUnusable."""
    if options.join is None:
        return None
    host, port = options.join
    context, fingerprint = await asyncio.to_thread(own_certificate, options.data)
    return Join(JoinPoint(host=host, port=port, certificate=fingerprint), context)


async def listen_for_nodes(joining: web.AppRunner, join: Join) -> None:
    """On that address where it is this machine's, else on all: nodes may know another one."""
    point, context = join.point, join.context
    await joining.setup()
    try:
        try:
            await web.TCPSite(joining, point.host, point.port, ssl_context=context).start()
        except OSError as error:
            # Behind address translation, the address that nodes use is not this machine's (bind(2):
            # EADDRNOTAVAIL).
            if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
                raise
            await web.TCPSite(joining, None, point.port, ssl_context=context).start()
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {point.host}:{point.port} ({why_unreachable(error)}); give another "
            "address with --join HOST:PORT"
        ) from error
