"""Schedules by rule: the papers' policies, and the program builder that they share."""
