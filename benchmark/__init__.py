"""Methods side by side: comparison, tables and pictures."""
