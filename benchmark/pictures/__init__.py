"""Pictures of schedules, frontiers and streams."""
