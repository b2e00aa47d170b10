"""What one field may hold: each type reads itself from YAML, and says what is allowed there.

`ALLOWED` is its sentence in errors, `SCHEMA` its JSON schema, `FIELDS` the struct of its long form,
`plain` the value for the wire and the database. A ValueError of `read` is the sentence about the
value; `convert` adds the field's path.
"""
