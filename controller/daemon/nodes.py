"""The links to nodes, and what sessions with them need."""

from __future__ import annotations

import asyncssh

from controller.assembly import NodeSettings
from controller.daemon.boot import Known
from controller.daemon.options import Options
from controller.lifecycle.model import Node
from controller.links.base import NodeLink
from controller.links.clients import LocalLink, SshLink
from controller.pipelines.performers.cluster import secret_of


def node_settings(options: Options, known: Known) -> NodeSettings:
    return NodeSettings(
        make_link=lambda node: make_link(node, known.key),
        secrets=known.vault,
        failure=options.node_failure,
        cluster_secret=secret_of(known.key),
        cluster_networks=options.cluster_networks,
    )


def make_link(node: Node, key: asyncssh.SSHKey) -> NodeLink:
    if node.address.local_socket:
        return LocalLink(node.address.shim_socket)
    return SshLink(node.address, key)
