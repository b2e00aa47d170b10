"""One definition for each type of run: `task`, `service`, `dev_environment`.

`plan` makes the policy of a run and the specs of its jobs; `types` finds the definition that a file
names; `definition` says what one consists of. `common` has the fields of every type, `groups` what
a group of jobs shares with its run, `checks` what every type refuses, `job` the spec of a job and
the defaults. `masking` says what may be shown of a configuration. `other_systems` answers names
that are no fields.
"""
