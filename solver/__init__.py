"""Schedules and bounds by proof."""
