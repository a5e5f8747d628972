/* Gradients of the vocabulary problem summed in an order that is given: so that a plain
 * implementation can be run in the declared order of another, and compared bit for bit (`run_order`
 * of struct vocab). A tool of comparison, not of speed: shards of the residual and the tokens' rows
 * travel to whoever sums them. */
#pragma once
#include "ops/vocab.h"

/* Sets v->dx and v->dw in v->run_order, which vocab_order_check passes, from the residual of this
 * rank's tokens, in blocks: shard s is [N_r, V_s], beginning at N_r times the shard's first row.
 * v->w is the full weight. Frees `residual`. Scratch, LIVE_WORKSPACE, where there are several
 * ranks: all tokens' residuals of this rank's shard, 4 (sum N) V_r, and their rows, b (sum N) H; a
 * segment that is not the first and has several parts takes another 4 N_r H or 4 V_r H. */
void vocab_reorder_gradients(struct vocab *v, float *residual);
