"""Instances from other projects' files."""
