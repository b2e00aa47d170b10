"""Services, terminals and forwarded ports at followers: each reaches replicas and jobs itself, so
that they outlast the leader.

A follower has a session with the leader (`messages`). The leader (`leader`) exposes the ports of
replicas on their nodes, says which of them get requests, and hears what the follower counts. The
follower keeps that (`follower`), admits by the database (`admission`), and carries requests
(`carrying`). For terminals and forwarded ports it asks the leader for a way to each job (`lent`),
and carries them (`job_ports`). Nodes are commanded by the leader (`exposing`), and reached by a
follower (`nodes`).
"""
