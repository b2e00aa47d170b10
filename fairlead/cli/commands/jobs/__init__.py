"""Commands that reach into a run's jobs: their output, files, ports and shells."""
