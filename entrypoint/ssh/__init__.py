"""SSH into a job's container, whatever its image holds.

`port` is in the container's first process: it owns the port and costs nothing until a connection
comes. Then the image's own sshd answers (`openssh`), installed first if the user asked for that
(`install`), or else the embedded server (`server`) in its own process, which ends when no user has
been connected for a while. `settings` reads what the shim left in the task's folder.
"""
