"""The first processes of a task without a container: one that no process of the task outlives
(`reaper`), and one that starts them at once (`fork_server`)."""
