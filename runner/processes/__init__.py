"""Processes of the container, as which user (`identity`), and from which command (`launch`).

`environment` makes the job's variables, with Fairlead's own (`variables`); `session_environment`
hands them to SSH sessions. `scratch` keeps secrets in memory; `spawn` starts processes and waits
for them. The job, the helpers that fetch code and the sessions of SSH are started by these modules.
"""
