"""The requests that are answered at once. Each asks the service and shows what it said."""

from __future__ import annotations

from controller import API_VERSIONS, __version__
from controller.api.bodies import (
    BlobAnswer,
    DrainBody,
    EventsAnswer,
    EventsQuery,
    HealthAnswer,
    NodeKeyAnswer,
    NodesAnswer,
    RunsAnswer,
    RunsQuery,
    SshQuery,
    StopBody,
    SubmitBody,
)
from controller.api.documents import NodeView, RunView, SshTarget
from controller.api.routes import Call
from controller.api.ssh import ssh_target
from controller.api.views import (
    event_view,
    node_view,
    run_summary,
    run_view,
)
from controller.blobs import PIECE_BYTES
from controller.lifecycle.model import Node, RunState
from controller.service.errors import Unavailable
from controller.service.nodes import NodeRequest


async def health(call: Call) -> HealthAnswer:
    return HealthAnswer(status="ok", version=__version__, api_versions=API_VERSIONS)


async def submit_run(call: Call) -> RunView:
    body: SubmitBody = call.body
    state = await call.service.runs.submit(
        body.configuration,
        user=call.caller,
        name=body.name,
        client_key=body.client_key,
        ssh_keys=body.ssh_keys,
    )
    return _run(call, state)


async def list_runs(call: Call) -> RunsAnswer:
    query: RunsQuery = call.query
    states = await call.service.runs.page(
        include_finished=query.all, limit=query.limit, before=query.before
    )
    names = call.service.nodes.names()
    return RunsAnswer(runs=tuple(run_summary(state, names) for state in states))


async def get_run(call: Call) -> RunView:
    return _run(call, await call.service.runs.get(call.path("run")))


async def find_ssh(call: Call) -> SshTarget:
    query: SshQuery = call.query
    state = await call.service.runs.get(call.path("run"))
    nodes = {node.id: node for node in call.service.nodes.all()}
    return ssh_target(state, query.job, nodes)


async def stop_run(call: Call) -> RunView:
    body: StopBody = call.body
    state = await call.service.runs.stop(call.path("run"), abort=body.abort, user=call.caller)
    return _run(call, state)


async def put_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    pieces = call.request.content.iter_chunked(PIECE_BYTES)
    return BlobAnswer(sha256=digest, size=await call.service.blobs.put(digest, pieces))


async def get_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    return BlobAnswer(sha256=digest, size=await call.service.blobs.size(digest))


async def list_events(call: Call) -> EventsAnswer:
    query: EventsQuery = call.query
    stored = await call.service.runs.events(query.run, after=query.after, limit=query.limit)
    return EventsAnswer(events=tuple(event_view(event) for event in stored))


async def list_nodes(call: Call) -> NodesAnswer:
    return NodesAnswer(nodes=tuple(_node(call, node) for node in call.service.nodes.all()))


async def add_node(call: Call) -> NodeView:
    request: NodeRequest = call.body
    return _node(call, await call.service.nodes.add(request, user=call.caller))


async def get_node(call: Call) -> NodeView:
    return _node(call, call.service.nodes.get(call.path("node")))


async def drain_node(call: Call) -> NodeView:
    body: DrainBody = call.body
    node = await call.service.nodes.drain(call.path("node"), reason=body.reason, user=call.caller)
    return _node(call, node)


async def resume_node(call: Call) -> NodeView:
    return _node(call, await call.service.nodes.resume(call.path("node"), user=call.caller))


async def clear_gpu(call: Call) -> NodeView:
    key, uuid = call.path("node"), call.path("gpu")
    return _node(call, await call.service.gpus.clear(key, uuid, user=call.caller))


async def remove_node(call: Call) -> NodeView:
    return _node(call, await call.service.nodes.remove(call.path("node"), user=call.caller))


async def get_node_key(call: Call) -> NodeKeyAnswer:
    if call.service.node_key is None:
        raise Unavailable("this controller has no SSH key: it was started without one")
    return NodeKeyAnswer(public_key=call.service.node_key)


def _run(call: Call, state: RunState) -> RunView:
    return run_view(state, call.service.nodes.names())


def _node(call: Call, node: Node) -> NodeView:
    return node_view(node, call.service.nodes.use(node))
