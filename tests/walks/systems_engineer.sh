#!/usr/bin/env bash
# A systems engineer measures a network, schedules it by what was measured, and runs the schedule.
# Pages: docs/profiles.md, docs/execution.md, docs/gpu.md.
source "$(dirname "${BASH_SOURCE[0]}")/told.sh"

run 0 pebbler profile cifar10_quick --batch 8 --backend cpu -o cifar.profile.json
has cifar.profile.json
run 0 pebbler instance cifar10_quick --batch 8 --profile cifar.profile.json --budget 1.0xMmin -o cifar.instance.json
run 0 pebbler solve cifar.instance.json --method modnn -o cifar.schedule.json
says "makespan" "offloaded"

# Predicted against measured, and every gradient against a run without a budget.
run 0 pebbler run cifar.instance.json cifar.schedule.json --backend cpu --operations --picture run.png --trace run.json
says "predicted:" "measured:" "losses and gradients have the same bits as without a budget"
has run.png run.json

# A timeline for Perfetto, and a script for a machine with a GPU that does not need pebbler.
run 0 pebbler trace cifar.instance.json cifar.schedule.json -o cifar.trace.json
has cifar.trace.json
run 0 pebbler emit cifar.instance.json cifar.schedule.json -o cifar_schedule.py
run 0 python -m py_compile cifar_schedule.py
run 1 grep "import pebbler" cifar_schedule.py

# What cannot run is refused in one sentence.
run 2 pebbler run cifar.instance.json cifar.schedule.json --backend tpu
says "tpu"
