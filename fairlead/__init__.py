"""The Python client of Fairlead; the `fairlead` command is built on it.

`Client` and `Task` are what programs use; `rest` has one method for each kind of request,
`submission` makes a run of a YAML file, `follow` reads streams over connections that break.
"""
