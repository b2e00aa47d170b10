"""The pages themselves, a module for each subject.

`runs` lists runs, and `run` shows one: its jobs (`jobs`), its parameter sets (`sweeps`) and the
file of its log (`logs`). `queue`, `nodes`, `services`, `dev_environments`, `events` and `people`
are pages of their own. `controller.web.app` lists the `PAGES` of all.
"""
