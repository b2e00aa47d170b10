"""From text to plain data in our fields.

`source` reads YAML and knows its lines (`yaml_errors` explains what is no YAML), `environment`
fills in the user's variables, `stored_secrets` knows the expressions that stand for secrets,
`dstack` translates another tool's forms. `written` is the way back: a configuration as YAML.
"""
