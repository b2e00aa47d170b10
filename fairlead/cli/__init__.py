"""The `fairlead` command. A command's module is imported when the command is used, so each starts
fast.

All commands talk to the controller through `fairlead.rest.ControllerClient` and fail through
`errors`.
"""
