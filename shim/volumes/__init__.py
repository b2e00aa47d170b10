"""What of the node's storage a job sees, and what it must never reach."""
