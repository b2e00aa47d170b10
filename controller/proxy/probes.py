"""Probes: ask a replica once, through the relay, whether it is ready.

Only what the probe saw is said; when probes run and what follows is for the lifecycle to decide.
"""

from __future__ import annotations

from common.proxy.headers import head_of
from common.proxy.upstream import ReplicaConnection, UpstreamError
from controller.links.base import NodeConnection
from controller.pipelines.performers.service_replicas import port_accepts
from controller.pipelines.to_node import AttemptContext, runner_socket
from fairlead.model.service import Probe, ProbeKind
from runner.client import RunnerError

MAX_BODY = 1 << 20
"""The most bytes of an answer that a probe reads; it reads to the end, because an answer that
breaks off is a failure."""


async def try_probe(
    context: AttemptContext, connection: NodeConnection, probe: Probe
) -> str | None:
    """Try a probe of a replica once (`TryProbe`)."""
    serves = context.job.spec.serves
    if probe.kind is ProbeKind.TCP or serves is None:
        return await port_accepts(context, connection, probe)
    return await ask(
        connection,
        runner_socket(context),
        serves.port,
        url=probe.url,
        method=probe.method,
        headers=probe.headers,
        body=probe.body,
    )


async def ask(
    connection: NodeConnection,
    socket: str,
    port: int,
    *,
    url: str,
    method: str = "GET",
    headers: tuple[tuple[str, str], ...] = (),
    body: str | None = None,
) -> str | None:
    """Send a request to the port; return why the answer is no success, as a sentence. None: its
    status is 2xx.

    Raises RunnerUnavailable, LinkError when the node cannot be reached.
    """
    try:
        stream = await connection.runner(socket).connect_port(port)
    # The runner answers and the job's port does not: that is a result of the probe.
    except RunnerError as error:
        return f"port {port}: {error.message}"
    asked = ReplicaConnection(stream)
    try:
        status = await _ask(asked, url, method, headers, (body or "").encode())
    except UpstreamError as error:
        return f"{method} {url}: the replica {error}"
    finally:
        asked.close()
    if 200 <= status < 300:
        return None
    return f"{method} {url} was answered with status {status}"


async def _ask(
    connection: ReplicaConnection,
    url: str,
    method: str,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
) -> int:
    """Return the status, once the whole answer is here. Raises UpstreamError."""
    own = {name.lower() for name, _ in headers}
    sent = list(headers)
    sent += [("Host", "localhost")] * ("host" not in own)
    sent += [("User-Agent", "fairlead-probe")] * ("user-agent" not in own)
    sent += [("Connection", "close")]
    if body or method in ("POST", "PUT", "PATCH"):
        sent.append(("Content-Length", str(len(body))))
    await connection.send(head_of(method, url, sent) + body)
    answer = await connection.answer(method)
    size = 0
    while (data := await connection.read()) and size < MAX_BODY:
        size += len(data)
    return answer.status
