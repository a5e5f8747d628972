#!/bin/sh
# Tables 3 and 12: what a host budget moves off the device for gpt-oss-20b on 8 ranks. Sets, logical and
# pinned bytes are arithmetic on shapes at the paper's ceiling of tokens and must equal the printed
# digits (logical bytes may lie 0.0075 GiB above them: a step has a few tokens fewer than its ceiling).
#
# The stack that runs here has the model's boundaries, not its layers: what the whole step holds and
# how long it takes needs the model on the paper's hardware.
#
# Usage: bench/tables/table_03_12.sh [OPTION]...
. "$(dirname "$0")/common.sh"

# The full budget is more than all 47 boundaries.
run checkpoint --impl sco --ranks 8 --layers 47 --tokens 69632 --hidden 2880 --ffn 2880 --dtype bf16 \
    --host-budget 0,8G,16G,64G --pinned-rounding pow2

tabulate <<'END'
title Tables 3 and 12: boundaries on the host, gpt-oss-20b, 8 ranks, 47 boundaries of 69632 tokens a rank

rows results/paper/table_03_12.csv
map budget host_budget_gib 8=8G,16=16G,full=64G
name {host_budget_gib} GiB
where op=checkpoint sco
figure boundaries offloaded | | {boundaries_offloaded} | [host_budget={budget} : figures.set] | exact
figure logical bytes | GiB | {logical_gib_high} | [host_budget={budget} : figures.offloaded_bytes] / GiB | exact 0.0075
figure pinned bytes | GiB | {pinned_gib} | [host_budget={budget} : memory.host_pinned_peak_bytes] / GiB | exact
figure step | s | {step_s} | - | needs gpt-oss-20b on 8 gpus
figure tokens per s and GPU | | {tokens_per_s_per_gpu} | 556432 / 8 / {step_s} | inconsistent

rows results/paper/table_03_12.csv
keep host_budget_gib 8,16,full
map budget host_budget_gib 8=8G,16=16G,full=64G
name {host_budget_gib} GiB
where op=checkpoint sco
figure HBM saved | GiB | 139.790 - {peak_hbm_gib} | ([host_budget=0 : memory.tracked_peak_bytes] - [host_budget={budget} : memory.tracked_peak_bytes]) / GiB | memory
why theirs are samples of the whole device taken every 100 ms, allocator and framework included
figure node RAM over that without a budget | GiB | {node_ram_gib} - 402.517 | 8 * [host_budget={budget} : memory.host_pinned_peak_bytes] / GiB | memory
why theirs is the node, ours the pinned blocks of its 8 ranks alone

rows -
what,printed
full budget,17.65
end
name {what}
figure HBM saved, as the text says | % | {printed} | 100 * (1 - 123.728 / 139.790) | inconsistent
note "17.65 % of HBM" is what the text says of the full budget; it is Table 13's gain in batch size.
END
