"""Connects to an address of a controller, and writes its name as HTTP and TLS know it."""

from __future__ import annotations

import socket

from fairlead.connections.addresses import Address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def dial(address: Address, seconds: float, handshake: float) -> socket.socket:
    """`handshake`: the seconds for the TLS of it. Raises OSError."""
    # getaddrinfo loads the codec of IDNA for each `str`, which is 1.3 ms of a command's start. The
    # stubs know only `str`.
    name: Any = _in_ascii(address.host).encode()
    made = socket.create_connection((name, address.port), seconds)
    try:
        # Else the kernel holds a request's content back until its head is confirmed (tcp(7)).
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _secured(made, address, handshake) if address.is_secure else made
    except BaseException:
        made.close()
        raise


def _secured(plain: socket.socket, address: Address, seconds: float) -> socket.socket:
    import ssl

    # A controller that waits may hold a connection until another one leads: that takes longer than
    # a machine takes to accept one.
    plain.settimeout(seconds)
    name = _in_ascii(address.host)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=name)


def _in_ascii(host: str) -> str:
    """Return the name as DNS, TLS and HTTP know it. Raises OSError when it can be none."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from None


def host_of(address: Address) -> str:
    """Return the header Host."""
    name = _in_ascii(address.host)
    name = f"[{name}]" if ":" in name else name
    usual = 443 if address.is_secure else 80
    return name if address.port == usual else f"{name}:{address.port}"
