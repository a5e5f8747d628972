#!/bin/sh
# Table 13: how large a step fits, gpt-oss-20b on 8 ranks, in steps of 32768 tokens. The allocation that
# fails first is the BF16 logits of a rank's tokens: arithmetic on shapes (a step has up to 0.5 % fewer
# tokens than its ceiling).
#
# How many tokens the whole model holds needs the model. What is searched here is its boundaries alone:
# 47 checkpointed layers of its width, until they fill the device.
#
# Usage: bench/tables/table_13.sh [OPTION]...
. "$(dirname "$0")/common.sh"

run checkpoint --impl sco --ranks 8 --layers 47 --tokens 64K --hidden 2880 --ffn 2880 --dtype bf16 \
    --host-budget 0,8G,16G,64G --search tokens --search-step 4096

tabulate <<'END'
title Table 13: the largest step that fits, gpt-oss-20b on 8 ranks

rows results/paper/table_13.csv
name {policy}
figure the allocation that fails: BF16 logits of a rank | GiB | {failed_allocation_gib} | {first_failure} / 8 * 201088 * 2 / GiB | exact 0.16
figure largest step that completes | tokens | {largest_completion} | - | needs gpt-oss-20b on 8 gpus
figure gain over no offload | % | {marginal_gain_pct} | 100 * ({largest_completion} / 557056 - 1) | inconsistent

rows -
policy,budget
off,0
8,8G
16,16G
full,64G
end
name {policy}
where op=checkpoint sco host_budget={budget}
figure boundaries alone: largest step that fits | tokens | - | 8 * [: search.fits] | shown
END
