#!/usr/bin/env bash
# A newcomer reads README.md from the top: the main job, its pictures, the commands that it names; then the tutorial.
source "$(dirname "${BASH_SOURCE[0]}")/told.sh"
readme=$walks/../../README.md

run 0 pebbler --version
run 0 pebbler --help
says "compare" "fits" "report"

# All methods side by side, by README's own line.
run 0 $(grep -m1 -o 'pebbler compare .*' "$readme")
says "flow feasible" "lower bound:" "limits: predicted by simulation, not measured"
has pebbler-out/vgg16-b256.png pebbler-out/vgg16-b256.flow.png
for schedule in pebbler-out/*.schedule.json; do
    run 0 pebbler check "${schedule%.*.schedule.json}.instance.json" "$schedule"
    says "valid"
done

# The commands that the answer ends in; the search for a better schedule ends by its time limit here.
name=pebbler-out/vgg16-b256
run 0 pebbler trace $name.instance.json $name.flow.schedule.json -o $name.flow.trace.json
has $name.flow.trace.json
run 0 pebbler solve $name.instance.json --method modnn -o $name.better.schedule.json
says "feasible"

# The same from Python, by README's own lines.
sed -n '/^```python$/,/^```$/{/^```/d;p}' "$readme" > readme.py
run 0 python readme.py
says "flow"

# The tutorial, word for word.
run 0 python "$walks/follow.py" --installed "$walks/../../docs/tutorial.md"
has my-gap/pebbler-out/mine-b850.flow.png my-gap/mine.certificate.json
has my-gap/less/mine-b850.flow.schedule.json

# What is wrong is told in one sentence.
run 2 pebbler compare no-such-network --out refused
says "no-such-network"
test ! -e refused || fail "a refused command left a folder"
