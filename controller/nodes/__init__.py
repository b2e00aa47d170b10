"""The controller's side of each node: connect, take stock, follow, reconnect."""
