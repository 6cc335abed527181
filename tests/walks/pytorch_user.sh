#!/usr/bin/env bash
# A PyTorch user's model runs out of memory: does it fit at all, in which way, and what does each method make of it?
# Pages: docs/importers.md, docs/fits.md. Needs torch, and no GPU.
source "$(dirname "${BASH_SOURCE[0]}")/told.sh"

cat > my_model.py << 'end'
import torch
from torch import nn


def make_step(batch):
    layer = nn.TransformerEncoderLayer(1024, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(1024, 1000))

    def step(tokens, labels):
        return nn.functional.cross_entropy(model(tokens).mean(1), labels)

    return model, step, (torch.zeros(batch, 512, 1024), torch.zeros(batch, dtype=torch.long))
end

# On 24 GiB, a batch of 256 does not fit in memory; with copies to the host, or tasks that run again, it does.
run 0 pebbler fits --torch my_model:make_step --batch 256 --device rtx3090 --time-limit 10s --workers 2
says "yes: there is a checked schedule" "in memory no" "recomputation yes" "copies yes"
has pebbler-out/*.fits.png

# Methods side by side at that batch.
run 0 pebbler compare --torch my_model:make_step --batch 256 --device rtx3090 --budget 22GiB \
    --methods network-wide,modnn,vdnn-dyn,save-on-cpu-rule --time-limit 5s --out methods
says "no schedule: network-wide" "modnn feasible" "lower bound:"
has methods/*.modnn.schedule.json

# A step that cannot be recorded is told with its line and the remedy.
sed 's/return nn.functional.cross_entropy(\(.*\))$/return float(nn.functional.cross_entropy(\1))/' my_model.py > logged.py
run 2 pebbler fits --torch logged:make_step --batch 256 --device rtx3090
says "logged.py"
