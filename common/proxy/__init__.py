"""The reverse proxy of the controller and of gateways: requests of users to replicas of services.

`entry` finds the service of a request by path, host name or model; `access` has its rate limits,
and `browsers` lets people log in. `forwarding` sends it to the replica with the fewest requests
(`replicas`), over HTTP/1.1 and a byte stream to its port (`upstream`). `view` is the seam: what a
program tells the proxy of its services, whom it admits, and how it reaches replicas.
"""
