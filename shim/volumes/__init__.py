"""Which parts of the node's storage a job sees, and which it must never reach."""
