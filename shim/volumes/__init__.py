"""The parts of the node's storage that a job sees, and those that it must never reach."""
