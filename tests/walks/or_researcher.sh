#!/usr/bin/env bash
# A researcher in optimisation takes the problem as files: a suite, an instance, a solver of her own that knows
# docs/formats.md alone, the checker that judges it, and a bound with its proof.
# Pages: docs/formats.md, docs/suites.md, docs/checker.md, docs/certificates.md.
source "$(dirname "${BASH_SOURCE[0]}")/told.sh"

run 0 pebbler generate tiny -o tiny
has tiny/manifest.json tiny/chain3-sizes-s1.instance.json
run 0 pebbler instance alexnet --batch 256 --device k40 --budget 1.05xMmin -o alexnet.instance.json
says "alexnet-b256"

# A solver of a page: its schedules pass the checker, on a tiny instance and on a network.
for name in tiny/chain3-sizes-s1 alexnet; do
    run 0 python -I "$walks/page_solver.py" $name.instance.json $name.page.schedule.json
    run 0 pebbler check $name.instance.json $name.page.schedule.json
    says "valid"
done

# The same schedule is refused where a copy is claimed to be a nanosecond faster, with the reason.
sed 's/"makespan_ns": \([0-9]*\)/"makespan_ns": 1/' alexnet.page.schedule.json > wrong.schedule.json
run 1 pebbler check alexnet.instance.json wrong.schedule.json
says "makespan"

# How good is it? A lower bound that anybody can prove anew, without a solver.
run 0 pebbler bound alexnet.instance.json --time-limit 10s -o alexnet.certificate.json
says "in exact arithmetic"
run 0 pebbler check-bound alexnet.instance.json alexnet.certificate.json
run 1 pebbler check-bound tiny/chain3-sizes-s1.instance.json alexnet.certificate.json

# And a method of pebbler's, which starts from that schedule.
run 0 pebbler solve alexnet.instance.json --method flow --time-limit 10s \
    --warm-start alexnet.page.schedule.json -o alexnet.flow.schedule.json
says "flow"
run 0 pebbler best-known tiny
says "chain3-sizes-s1"
