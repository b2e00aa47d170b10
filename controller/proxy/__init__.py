"""The controller's reverse proxy: requests of users to the replicas of services.

`entry` finds the service of a request by path, host name or model; `access` admits it, and
`browsers` lets people log in. `forwarding` sends it to the replica with the fewest requests
(`replicas`), over HTTP/1.1 through the node's connection and the runner's port relay (`upstream`).
`probes` asks replicas whether they are ready; `view` is the seam to the lifecycle of services, and
`registered` its real side.
"""
