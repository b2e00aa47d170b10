"""Commands about runs and their jobs."""
