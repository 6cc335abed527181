"""Traces of any system: what its streams did to which bytes, and whether some timing corrupts data."""
