"""One definition for each type of run: `task`, `service`, `dev_environment`.

`plan` makes the policy of a run and the specs of its jobs, after `types` has found the definition
that its file names; `definition` says what one consists of. `common` has
the fields of every type, `groups` what a group of jobs shares with its run, `checks` what every
type refuses, `job` the spec of a job and the defaults. `other_systems` answers names that are no
fields.
"""
