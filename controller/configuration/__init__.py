"""A user's configuration is understood or refused here: YAML → `schema` → policy and job specs.

`source` reads a file and knows its lines, `parse` says what is wrong with which field, `plan` turns
a valid configuration into policy and job specs. All of it is pure, except for reading the file.
"""
