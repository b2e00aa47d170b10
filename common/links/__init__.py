"""SSH to one machine with a pinned host key, and HTTP over its channels.

Begin with `ssh`, which logs in. `ssh_http` opens unix sockets of that machine through it,
`host_keys` reads and shows keys, and `errors` names what can fail. Nothing here knows who answers.
"""
