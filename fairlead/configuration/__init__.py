"""A user's YAML becomes a plan here, or one sentence about one field and its line.

    text ──► values ──► a definition, which makes the plan
    `text`       reads the file, fills in variables, translates dstack's forms: plain data
    `values`     what one field may hold: each type reads itself and says what it allows
    `runs`       one definition for each type of run: its fields, hints, checks, groups and policy;
                 `runs/plan.py` makes the run's policy and the specs of its jobs of them

`parse` takes data as far as a checked configuration. At the bottom, `field` lets a field say what
it may hold, and `convert` and `hints` turn what is wrong into sentences. `secrecy` decides what may
be shown. `json_schema` and `server_config`, the controller's own file, stand on top. All of it is
pure, except for reading a file. `pyproject.toml` keeps the order.

Where the next features go, without a change to the other types of run:

- `type: fleet` with `machines:` and `budget:` is no run. Its fields are a struct with a struct for
  each section, as in `server_config`, and `convert` reads it. What a machine must have is
  `ResourcesFields`.
- `sweep:`, `after:` and deadlines of a task: each section is a struct in `values`, and one field of
  `TaskConfiguration`. `Task.check` refuses what contradicts it; `Task.groups` makes the jobs of a
  sweep, and `Task.policy` takes `after` and the deadlines.
- A limit for every type (money, time, requests) is a field of `CommonFields`, and `common_policy`
  takes it into the policy.
- What chooses machines (`spot_policy`, `max_price`, `regions`, …) is a field of `GroupedFields`; a
  job's spec that has a field of the same name is filled by itself.
"""
