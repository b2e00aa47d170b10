"""What runs a task: Docker, or plain processes (development only)."""
