#!/bin/sh
# Figure 5 says what a rank keeps on the host for a model of 10^12 parameters on 96 ranks: 12 bytes a
# parameter, FP32 master and two moments. The same is the floor of a step over the host's link, both
# ways (Eq. 5).
#
# Usage: bench/tables/figure_05.sh [OPTION]...
. "$(dirname "$0")/common.sh"

run optimizer --impl offload-stream --params 1e12 --world 96 --ranks 8 --bucket 100e6 --slots 2 \
    --gradients device-bf16

tabulate <<'END'
title Figure 5: optimizer state of 10^12 parameters on 96 ranks, pinned on the host of each

rows -
params,world,pinned_gib
1e12,96,116
end
name 10^12 parameters, {world} ranks
where op=optimizer world={world}
figure 12 bytes a parameter | GiB | {pinned_gib} | 12 * {params} / {world} / GiB | exact
figure pinned on the host | GiB | {pinned_gib} | [: memory.host_pinned_peak_bytes] / GiB | exact
figure device memory, staging of two slots | GiB | - | [: figures.staging_bytes] / GiB | shown
figure step | s | - | [: time.median_s] | shown
END
