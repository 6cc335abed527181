#!/usr/bin/env bash
# A researcher has a heuristic in one file, holds it against exact methods on a suite, and wants figures for a paper.
# Pages: docs/own-heuristic.md, docs/suites.md, docs/bench.md.
source "$(dirname "${BASH_SOURCE[0]}")/told.sh"

# The heuristic of the page, up to where the page tries it, and the lines that make its file a package.
sed -n '/^```python$/,/^```$/{/^```/d;/^instance = /q;p}' "$walks/../../docs/own-heuristic.md" > furthest.py
cat > pyproject.toml << 'end'
[project]
name = "furthest"
version = "1.0"

[project.entry-points."pebbler.methods"]
furthest = "furthest"

[tool.setuptools]
py-modules = ["furthest"]
end
run 0 python -m pip install --quiet --no-deps --target packages .
export PYTHONPATH=$PWD/packages${PYTHONPATH:+:$PYTHONPATH}
run 0 pebbler methods
says "furthest fetch on demand"

# Beside exhaustive search and CP-SAT, which prove what is optimal on instances of this size.
cat > tiny.toml << 'end'
title = "Furthest beside exact methods"

[[sweep]]
methods = ["furthest", "modnn", "brute-force", "cp-sat"]
time_limits = ["5s"]
suites = ["tiny"]
select = ["chain3-sizes-s?", "residual-sizes-s1"]
end
run 0 pebbler bench tiny.toml -o tiny.sqlite
says "12 runs made, 0 of them failed"
run 0 pebbler bench tiny.toml -o tiny.sqlite  # what is there is not made again
says "0 runs made, 0 of them failed; 12 were there"

# The page, and tables for the paper.
run 0 pebbler report tiny.sqlite -o report
has report/index.html report/gaps.csv report/gaps.tex report/win-loss.tex
run 0 cat report/gaps.csv
says "furthest" "brute-force"
grep -q "Furthest beside exact methods" report/index.html || fail "the page does not have the title of the sweep"

# A method that is not there is told before anything runs.
sed 's/"modnn"/"furthes"/' tiny.toml > wrong.toml
run 2 pebbler bench wrong.toml -o wrong.sqlite
says "furthes"
test ! -e wrong.sqlite || fail "a refused sweep left a file"
