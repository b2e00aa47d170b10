"""What runs a task: Docker, plain processes (development only), or memory (tests)."""
