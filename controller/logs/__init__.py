"""The job logs that the controller keeps: what it acknowledged to a runner lies here, durably."""
