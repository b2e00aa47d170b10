"""The controllers that share a database, as REST."""

from __future__ import annotations

import msgspec

from controller.api.http.routes import Call, Route
from controller.clock import iso
from controller.store.base import Peer, Sight, is_full
from fairlead.documents.installation import ControllerView

_GONE = "gone"


class ControllersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    controllers: tuple[ControllerView, ...]


async def list_controllers(call: Call) -> ControllersAnswer:
    sight = await call.service.controllers(call.caller)
    if sight is None:
        return ControllersAnswer(controllers=())
    views = [_view(sight, peer) for peer in sight.peers]
    # The rows of earlier starts stay for a day, so that one that is gone for good is seen.
    latest = {view.url: view.id for view in views}
    shown = [one for one in views if one.status != _GONE or latest[one.url] == one.id]
    return ControllersAnswer(controllers=tuple(shown))


def _view(sight: Sight, peer: Peer) -> ControllerView:
    # The row of a leader stays until another one leads. Who leads renews the lease.
    is_gone = not sight.is_alive(peer) or (peer.leads and sight.may_lead)
    status = "leads" if peer.leads else "waits"
    return ControllerView(
        id=peer.id,
        url=peer.url,
        version=peer.version,
        status=_GONE if is_gone else status,
        started_at=iso(peer.started_at),
        last_seen_at=iso(peer.seen_at),
        disk_free_bytes=peer.free,
        is_disk_full=is_full(peer.free),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/controllers",
        summary="The controllers that share the database, and which of them leads",
        handler=list_controllers,
        answer=ControllersAnswer,
    ),
)
