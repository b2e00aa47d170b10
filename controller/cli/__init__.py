"""The `fairlead` command. Commands are imported when they are used, so that each starts fast; all
talk to the controller through `client.ControllerClient` and fail through `errors`."""
