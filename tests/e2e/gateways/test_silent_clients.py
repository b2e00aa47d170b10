"""Clients of a gateway that fall silent: where it is their turn, they are closed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.gateway_here import gateway_here
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e
HOST = b"Host: api.apps.test\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
SOON = LONG


def quick(configuration: str) -> str:
    return _shortened(configuration, "http-request 60s", "http-keep-alive 60s", "client 300s")


def quick_after_the_request(configuration: str) -> str:
    """Between its connection and its request, a busy client may stand still."""
    return _shortened(configuration, "http-keep-alive 60s", "client 300s")


def _shortened(configuration: str, *timeouts: str) -> str:
    changed = configuration
    for before in timeouts:
        assert f"timeout {before}" in configuration
        changed = changed.replace(f"timeout {before}", f"timeout {before.split()[0]} 1s")
    return changed


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A replica that pauses for longer than a client may, or speaks in a tunnel."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"upgrade: websocket" in head.lower():
        upgraded = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
        writer.write(upgraded + b"Connection: Upgrade\r\n\r\n")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi")
    await asyncio.sleep(2.5)
    writer.write(b"ne")
    await reader.read()


@pytest.mark.parametrize(
    ("tls", "sent"),
    [
        (False, b""),
        (False, b"GET / HTTP/1.1\r\n" + HOST + b"X-A: "),
        (False, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nhalf"),
        (False, PREFACE + b"\0\0\x01\x01\x01\0\0\0\x01\x82"),
        (True, b""),
        (True, b"\x16\x03\x01\x02\x00\x01"),
    ],
)
async def test_a_client_that_sends_half_is_closed(tmp_path: Path, tls: bool, sent: bytes) -> None:
    async with gateway_here(tmp_path, quick) as gateway:
        await gateway.serve("api", serve)
        port = gateway.https if tls else gateway.http
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(sent)
            async with asyncio.timeout(SOON):
                await reader.read()
            assert reader.at_eof()


@pytest.mark.parametrize(
    "asks",
    [b"", b"Accept: text/event-stream\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n"],
)
async def test_a_client_that_waits_for_its_answer_is_not(tmp_path: Path, asks: bytes) -> None:
    async with gateway_here(tmp_path, quick_after_the_request) as gateway:
        await gateway.serve("api", serve)
        reader, writer = await gateway.dial()
        with contextlib.closing(writer):
            writer.write(b"GET / HTTP/1.1\r\n" + HOST + asks + b"\r\n")
            async with asyncio.timeout(SOON):
                assert (await reader.readuntil(b"ne")).endswith(b"ne")
