#!/bin/sh
# Table 7: a ladder of batch sizes. How many chunks a token budget of 4096, at most 10, makes of a
# rank's tokens is Eq. 1 alone and must equal the printed figures; what they cost and save against LLEP
# is printed as a range over routings that the paper does not name: here they are Table 6's.
#
# Usage: bench/tables/table_07.sh [OPTION]...
. "$(dirname "$0")/common.sh"

shape='--ranks 8 --tokens 128,1K,8K,32K,64K,128K --experts 128 --topk 8'
routings=balanced,30/16,50/16,80/16,95/16,30/4,50/4
layer="--routing $routings --hidden 7168 --ffn 2048 --dtype bf16 --pass forward"
plan replay $shape --chunk-budget 4096 --max-chunks 10
run dispatch $shape $layer --impl llep,pipelined-llep --chunk-budget 4096 --max-chunks 10
run dispatch $shape $layer --impl pipelined-llep --chunk-count 10

tabulate <<'END'
title Table 7: batch sizes, a budget of 4096 tokens (K at most 10) against a fixed K = 10; H = 7168, F = 2048

rows results/paper/table_07.csv
name N = {tokens_per_rank}
where op=replay tokens={tokens_per_rank}
figure chunks | | {chunks_from_budget} | [chunk_budget=4096 : figures.chunk_count] | exact

rows results/paper/table_07.csv
name N = {tokens_per_rank}
over routing balanced,30/16,50/16,80/16,95/16,30/4,50/4
where op=dispatch tokens={tokens_per_rank}
figure budget: LLEP over pipelined-llep, time, lowest | | {budget_speedup_low} | low([llep routing={routing} : time.median_s] / [pipelined-llep chunk_budget=4096 routing={routing} : time.median_s]) | time 25
why N = 128 | one chunk is LLEP's own schedule here; the printed gains at small batches are host costs of the other code, which the model has not
why N = 1024 | one chunk is LLEP's own schedule here; the printed gains at small batches are host costs of the other code, which the model has not
figure budget: LLEP over pipelined-llep, time, highest | | {budget_speedup_high} | high([llep routing={routing} : time.median_s] / [pipelined-llep chunk_budget=4096 routing={routing} : time.median_s]) | time 25
why N = 128 | one chunk is LLEP's own schedule here; the printed gains at small batches are host costs of the other code, which the model has not
why N = 1024 | one chunk is LLEP's own schedule here; the printed gains at small batches are host costs of the other code, which the model has not
figure budget: peak saved, least | % | {budget_saved_pct_low} | low(100 * (1 - [pipelined-llep chunk_budget=4096 routing={routing} : memory.tracked_peak_bytes] / [llep routing={routing} : memory.tracked_peak_bytes])) | relation >{budget_saved_pct_low}
why with few chunks the two slots each way outweigh what chunks save; LLEP keeps less here than the printed one
figure budget: peak saved, most | % | {budget_saved_pct_high} | high(100 * (1 - [pipelined-llep chunk_budget=4096 routing={routing} : memory.tracked_peak_bytes] / [llep routing={routing} : memory.tracked_peak_bytes])) | memory
why with few chunks the two slots each way outweigh what chunks save; LLEP keeps less here than the printed one
figure K = 10: LLEP over pipelined-llep, time, lowest | | {fixed_speedup_low} | low([llep routing={routing} : time.median_s] / [pipelined-llep chunk_count=10 routing={routing} : time.median_s]) | time 25
why launches decide at few tokens; the model charges 4 us a kernel and 10 us a message, and no host time
figure K = 10: LLEP over pipelined-llep, time, highest | | {fixed_speedup_high} | high([llep routing={routing} : time.median_s] / [pipelined-llep chunk_count=10 routing={routing} : time.median_s]) | time 25
why launches decide at few tokens; the model charges 4 us a kernel and 10 us a message, and no host time
figure K = 10: peak saved, least | % | {fixed_saved_pct_low} | low(100 * (1 - [pipelined-llep chunk_count=10 routing={routing} : memory.tracked_peak_bytes] / [llep routing={routing} : memory.tracked_peak_bytes])) | relation >{fixed_saved_pct_low}
why N = 128 | resident weights are nearly all of both peaks
why N = 1024 | resident weights are nearly all of both peaks
figure K = 10: peak saved, most | % | {fixed_saved_pct_high} | high(100 * (1 - [pipelined-llep chunk_count=10 routing={routing} : memory.tracked_peak_bytes] / [llep routing={routing} : memory.tracked_peak_bytes])) | memory
why LLEP and its chunks keep less here than the printed ones, and resident weights are 1.3 GiB where the printed ones are 10.5
END
