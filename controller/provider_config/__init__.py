"""The providers of machines as the controller's file names them (`providers.NAME`).

`reading` chooses the module of the named type. Each type has one: the fields as they are written,
the struct that the provider is made from, and what leads from one to the other. `checks` has what
several types allow.

A type that is not configured loads nothing: these modules know no library of a cloud.
"""
