"""How results are written: tables, LaTeX, Markdown, names of files."""
