"""Decides which images a node pulls ahead: its fleet's, and those of jobs nominated to it.

`wanted_images` is the decision; `NodeImages` keeps the nominations that are committed, and fills in
stored secrets. A session asks its node whenever the list differs from what it asked for last
(`nodes.session`). All of it is best effort: no job waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from controller.lifecycle.model import Fleet, Node, RunState
from controller.pipelines import to_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, SecretSource
from controller.vault import SecretMissing
from fairlead.configuration.text.stored_secrets import filled
from fairlead.model.statuses import AllocationState
from fairlead.wire.shim import PullPolicy, RegistryAuth, WantedImage, WantedImages

log = logging.getLogger(__name__)
MAX_NOMINATED = 32
"""Images of waiting jobs that a node is asked for at once."""


def wanted_images(
    node: Node, fleet: Fleet | None, auth: RegistryAuth | None, nominated: Iterable[WantedImage]
) -> WantedImages | None:
    """Return what the node is to pull ahead; None: it is not asked, since its engine has no images
    or its shim is older. `auth`: the fleet's login with its password."""
    if node.capacity.images is None:
        return None
    # Nothing more starts on a draining node; what it has pulled stays until the disk needs room.
    if node.draining:
        return WantedImages(images=())
    own = () if fleet is None else fleet.images
    waiting = tuple(dict.fromkeys(nominated))[:MAX_NOMINATED]
    of_fleet = (WantedImage(image=image, registry_auth=auth) for image in own)
    return WantedImages(images=(*waiting, *of_fleet))


class NodeImages:
    """A TurnListener. `wake` is called with the id of a node whose nominations have changed."""

    def __init__(
        self, pipeline: RunPipeline, secrets: SecretSource, wake: Callable[[str], None]
    ) -> None:
        self._wake = wake
        self._pipeline = pipeline
        self._secrets = secrets
        self._nominated: dict[str, frozenset[str]] = {}
        """The nodes to which jobs of a run are nominated, by the run."""
        self._by_node: dict[str, dict[str, None]] = {}
        """The runs with nominations on each node, the oldest first."""

    @property
    def is_idle(self) -> bool:
        """Whether no job is nominated to any node."""
        return not (self._nominated or self._by_node)

    def committed(self, touched: Sequence[RunState]) -> None:
        for state in touched:
            before = self._nominated.get(state.run.id, frozenset())
            now = frozenset(
                one.node_id for one in state.allocations if one.state is AllocationState.NOMINATED
            )
            if now == before:
                continue
            self._note(state.run.id, before, now)
            for node_id in sorted(before ^ now):
                self._wake(node_id)

    def wanted(self, node: Node) -> WantedImages | None:
        """Return what this node is to pull ahead; None: it is not asked."""
        if node.capacity.images is None:
            return None
        fleet = self._pipeline.fleets.get(node.fleet)
        auth = None
        try:
            auth = None if fleet is None else login_of(fleet, self._secrets)
        except SecretMissing as error:
            log.warning("node %s pulls no images of fleet %s: %s", node.name, node.fleet, error)
            # Without its login, the registry would refuse the images of the fleet at each try.
            fleet = None
        return wanted_images(node, fleet, auth, self._of_waiting_jobs(node.id))

    def _note(self, run_id: str, before: frozenset[str], now: frozenset[str]) -> None:
        self._nominated.pop(run_id, None)
        if now:
            self._nominated[run_id] = now
        for node_id in sorted(now - before):
            self._by_node.setdefault(node_id, {})[run_id] = None
        for node_id in before - now:
            runs = self._by_node[node_id]
            del runs[run_id]
            if not runs:
                del self._by_node[node_id]

    def _of_waiting_jobs(self, node_id: str) -> Iterator[WantedImage]:
        for run_id in self._by_node.get(node_id, ()):
            state = self._pipeline.runs.get(run_id)
            if state is None:
                continue
            places = {
                one.id
                for one in state.allocations
                if one.node_id == node_id and one.state is AllocationState.NOMINATED
            }
            for context in to_node.live_attempts(state):
                may_pull = context.job.spec.pull_policy is not PullPolicy.NEVER
                if context.attempt.allocation_id in places and may_pull:
                    yield from self._image_of(context)

    def _image_of(self, context: AttemptContext) -> Iterator[WantedImage]:
        try:
            spec = context.with_secrets(self._secrets).job.spec
        except SecretMissing:
            return  # the job itself will end with that reason
        yield WantedImage(
            image=spec.image,
            digest=to_node.pinned_digest(context),
            registry_auth=spec.registry_auth,
            nominated=True,
        )


def login_of(fleet: Fleet, secrets: SecretSource) -> RegistryAuth | None:
    """Return the login at the registry of the fleet's images, with its password. Raises
    SecretMissing."""
    written = fleet.registry_auth
    if written is None:
        return None

    def shared(name: str) -> str:
        return secrets.value(None, name)

    return msgspec.structs.replace(
        written,
        username=filled(written.username, shared),
        password=filled(written.password, shared),
    )
