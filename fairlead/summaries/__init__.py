"""What users read of the API's answers, in a few words: how a run does (`progress`, in a notebook
`notebook`), what is free (`offers`), and how a dev environment is opened (`dev_environments`)."""
