"""The requests that are answered at once: each handler asks the service and shows its answer."""

from __future__ import annotations

from controller import API_VERSIONS, __version__
from controller.api.bodies import (
    AttemptsAnswer,
    AttemptsQuery,
    BlobAnswer,
    DrainBody,
    EventsAnswer,
    EventsQuery,
    HealthAnswer,
    NodeKeyAnswer,
    NodesAnswer,
    RemoveQuery,
    RunsAnswer,
    RunsQuery,
    SshQuery,
    SubmitBody,
)
from controller.api.documents import NodeView, RunView, SshTarget
from controller.api.paging import cut, number, page
from controller.api.routes import Call, Instead
from controller.api.ssh import ssh_target
from controller.api.views import (
    event_view,
    node_view,
    past_attempt_view,
    run_summary,
    run_view,
)
from controller.blobs import PIECE_BYTES
from controller.lifecycle.model import Node, RunState
from controller.service.errors import Unavailable
from controller.service.nodes import NodeRequest, NodeUse
from controller.service.submissions import Submission


async def health(call: Call) -> HealthAnswer:
    return HealthAnswer(status="ok", version=__version__, api_versions=API_VERSIONS)


async def submit_run(call: Call) -> Instead | RunView:
    body: SubmitBody = call.body
    submission = Submission(
        configuration=body.configuration,
        name=body.name,
        client_key=body.client_key,
        ssh_keys=body.ssh_keys,
        if_exists=body.if_exists,
        parent=body.parent,
    )
    submitted = await call.service.submissions.submit(submission, user=call.caller)
    view = shown_run(call, submitted.state)
    if submitted.kept or submitted.ending:
        return Instead(answer=view, status=200 if submitted.kept else 202)
    return view


async def list_runs(call: Call) -> RunsAnswer:
    query: RunsQuery = call.query
    states = await call.service.runs.page(
        include_finished=query.all,
        limit=query.limit + 1,
        before=query.cursor or query.before,
        user=call.caller,
    )
    names = call.service.nodes.names()
    states, cursor = cut(states, query.limit, lambda state: state.run.id)
    return RunsAnswer(runs=tuple(run_summary(state, names) for state in states), next_cursor=cursor)


async def get_run(call: Call) -> RunView:
    state = await call.service.runs.get(call.path("run"))
    children = await call.service.runs.family(state)
    return run_view(state, call.service.nodes.names(), children)


async def list_attempts(call: Call) -> AttemptsAnswer:
    query: AttemptsQuery = call.query
    runs = call.service.runs
    found = await runs.attempts(
        await runs.get(call.path("run")),
        job_key=query.job,
        occurrence=query.occurrence,
        incarnation=query.incarnation,
        after=query.cursor,
        limit=query.limit + 1,
    )
    found, cursor = cut(found, query.limit, lambda attempt: attempt.id)
    names = call.service.nodes.names()
    views = tuple(past_attempt_view(attempt, names) for attempt in found)
    return AttemptsAnswer(attempts=views, next_cursor=cursor)


async def find_ssh(call: Call) -> SshTarget:
    query: SshQuery = call.query
    state = await call.service.runs.get(call.path("run"))
    nodes = {node.id: node for node in call.service.nodes.all()}
    return ssh_target(state, query.job, nodes)


async def put_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    pieces = call.request.content.iter_chunked(PIECE_BYTES)
    size = await call.service.blobs.put(digest, pieces, user=call.caller)
    return BlobAnswer(sha256=digest, size=size)


async def get_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    size = await call.service.blobs.size(digest, user=call.caller)
    return BlobAnswer(sha256=digest, size=size)


async def list_events(call: Call) -> EventsAnswer:
    query: EventsQuery = call.query
    stored = await call.service.runs.events(
        query.run,
        after=number(query.cursor) or query.after,
        limit=query.limit + 1,
        user=call.caller,
    )
    stored, cursor = cut(stored, query.limit, lambda event: str(event.seq))
    return EventsAnswer(events=tuple(event_view(event) for event in stored), next_cursor=cursor)


async def list_nodes(call: Call) -> NodesAnswer:
    found, cursor = page(call.service.nodes.all(), call.query, lambda node: node.name)
    nodes = call.service.nodes
    uses = nodes.uses(call.caller)
    views = (node_view(node, uses.get(node.id, NodeUse()), nodes.seen_at(node)) for node in found)
    return NodesAnswer(nodes=tuple(views), next_cursor=cursor)


async def add_node(call: Call) -> NodeView:
    request: NodeRequest = call.body
    return shown_node(call, await call.service.nodes.add(request, user=call.caller))


async def get_node(call: Call) -> NodeView:
    return shown_node(call, call.service.nodes.get(call.path("node")))


async def drain_node(call: Call) -> NodeView:
    body: DrainBody = call.body
    node = await call.service.nodes.drain(
        call.path("node"), reason=body.reason, deadline=body.deadline, user=call.caller
    )
    return shown_node(call, node)


async def resume_node(call: Call) -> NodeView:
    return shown_node(call, await call.service.nodes.resume(call.path("node"), user=call.caller))


async def clear_gpu(call: Call) -> NodeView:
    key, uuid = call.path("node"), call.path("gpu")
    return shown_node(call, await call.service.gpus.clear(key, uuid, user=call.caller))


async def remove_node(call: Call) -> NodeView:
    query: RemoveQuery = call.query
    node = await call.service.nodes.remove(call.path("node"), lost=query.lost, user=call.caller)
    return shown_node(call, node)


async def get_node_key(call: Call) -> NodeKeyAnswer:
    if call.service.node_key is None:
        raise Unavailable("this controller has no SSH key: it was started without one")
    return NodeKeyAnswer(public_key=call.service.node_key)


def shown_run(call: Call, state: RunState) -> RunView:
    service = call.service
    return run_view(state, service.nodes.names(), service.runs.children(state))


def shown_node(call: Call, node: Node) -> NodeView:
    nodes = call.service.nodes
    return node_view(node, nodes.use(node, call.caller), nodes.seen_at(node))
