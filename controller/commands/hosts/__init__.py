"""Makes existing machines nodes, over SSH, from the operator's own machine.

`connection` logs in to a host as its operator, `trust` chooses its host key, `preflight` judges its
facts, `install` makes it a node with a `bundle`. The controller gets none of the operator's keys;
it is used through its API, as by every command.
"""
