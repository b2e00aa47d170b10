"""Services: replicas that serve requests, and how their number and their version change.

`fairlead.model.service` has the nouns, `readiness` says which replicas get traffic, `replicas`
starts and ends replicas, `rollout` moves a service to another version, `scaling` says how many
replicas a load needs. `membership.members` says which jobs are one replica. Begin with `replicas`:
`decide` calls its `settle` in each turn.
"""
