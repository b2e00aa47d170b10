"""SSH into a job's container, whatever its image holds.

`door` lives in the container's first process: it owns the port and costs nothing until somebody
knocks. Then the image's own sshd answers (`openssh`), installed first if the user asked for that
(`install`), or else our embedded server (`server`) in a process of its own, which ends again when
nobody has been connected for a while. `settings` is what the shim has left in the task's folder.
"""
