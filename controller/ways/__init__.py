"""Services at followers: each reaches replicas itself, so that they outlast the leader.

A follower has a session with the leader (`messages`). The leader (`leader`) exposes the ports of
replicas on their nodes, says which of them get requests, and hears what the follower counts. The
follower keeps that (`follower`), admits by the database (`admission`), and carries requests
(`carrying`).
"""
