"""Making machines that exist into nodes, over SSH, from the operator's own machine.

`connection` reaches a host as its operator does, `trust` chooses its host key, `preflight` judges
what it is, `install` makes it a node by a `bundle`. The controller sees none of the operator's
keys: it is asked through its API, like by every command.
"""
