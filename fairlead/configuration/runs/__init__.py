"""One definition for each type of run: `task`, `service`, `dev_environment`.

`types` finds the definition that a file names; `definition` says what one consists of. `common` has
the fields of every type, `groups` what a group of jobs shares with its run, `checks` what every
type refuses, `job` the spec of a job and the defaults. `other_systems` answers names that are no
fields.
"""
