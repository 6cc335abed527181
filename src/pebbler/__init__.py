"""Pebbler: memory schedules and proven bounds for training networks that do not fit."""
