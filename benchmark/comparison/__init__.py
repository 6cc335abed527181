"""Methods side by side on one problem."""
