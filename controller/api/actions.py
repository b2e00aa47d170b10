"""Actions on a live run and its jobs; each answers with the run as it then is."""

from __future__ import annotations

from controller.api.bodies import ScaleBody, StopBody, SuspendBody
from controller.api.documents import RunView
from controller.api.handlers import shown_run
from controller.api.routes import Call


async def stop_run(call: Call) -> RunView:
    body: StopBody = call.body
    actions = call.service.actions
    return shown_run(call, await actions.stop(call.path("run"), abort=body.abort, user=call.caller))


async def complete_run(call: Call) -> RunView:
    actions = call.service.actions
    return shown_run(call, await actions.complete(call.path("run"), user=call.caller))


async def suspend_run(call: Call) -> RunView:
    body: SuspendBody = call.body
    state = await call.service.actions.suspend(
        call.path("run"), abort_running=body.abort_running, user=call.caller
    )
    return shown_run(call, state)


async def resume_run(call: Call) -> RunView:
    actions = call.service.actions
    return shown_run(call, await actions.resume(call.path("run"), user=call.caller))


async def scale_run(call: Call) -> RunView:
    body: ScaleBody = call.body
    state = await call.service.actions.scale(
        call.path("run"), group=body.group, nodes=body.nodes, user=call.caller
    )
    return shown_run(call, state)


async def abort_job(call: Call) -> RunView:
    actions = call.service.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.abort_job(run, job, user=call.caller))


async def abandon_job(call: Call) -> RunView:
    actions = call.service.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.abandon_job(run, job, user=call.caller))


async def interrupt_job(call: Call) -> RunView:
    actions = call.service.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.interrupt_job(run, job, user=call.caller))
