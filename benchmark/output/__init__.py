"""Output of results: tables, LaTeX, Markdown, and names of files."""
