"""The job logs that the controller keeps: what it acknowledged to a runner is durable here."""
