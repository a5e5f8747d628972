/* Memory of the ring, with W values in an expert, M the largest rank's tokens, and R, I the rows
 * and index bytes of the largest piece:
 *
 *   dispatch    R H b                       matching rows; in forward outputs take their place
 *   expert      2 R F b, in backward R (3 F + H) b              (ReLU: one F less)
 *   workspace   2 I, in backward 4 R
 *   output      N H b, in backward 2 N H b + 4 k N
 *   gradients   in backward 4 W E/P
 *
 *   experts travel   ring      2 W b E/P, in backward 2 W (b + 4) E/P
 *                    combine   4 N H where the problem is BF16: sums are FP32 until they are whole
 *   tokens travel    ring      2 M (H b + 4 k), in backward 2 M (2 H b + 4 k): tokens, dY, weights
 *                              2 M 4 H, in backward 2 M (4 H + 4 k): sums, dw
 *
 * Where only one or no payload is on its way (P = 1, 2) there are as many fewer buffers, and where
 * a pass has one piece there is one I. What circulates does not depend on k or on the routing, but
 * for 4 k bytes a token of router weights; R does: without --hop-rows it is the hop with the most
 * matches, and all of k N when every route goes to one partition. */
#include "ops/relay_memory.h"
#include <stdlib.h>
#include "ops/moe_expert.h"
#include "ops/relay_hop.h"

/* ---- plans ----------------------------------------------------------------------------------- */

int64_t relay_most_tokens(const struct moe_shape *shape)
{
    int64_t most = 0;
    for (int r = 0; r < shape->ranks; r++)
        most = shape->tokens[r] > most ? shape->tokens[r] : most;
    return most;
}

/* The meetings of a rank, hop by hop. */
static int plan_of(struct relay_plan *plan, const struct moe_shape *shape,
    const struct moe_options *options, int rank, bool tokens_move, const int32_t *const *idx)
{
    int64_t owned = moe_experts_per_rank(shape);
    struct relay_meeting *meetings = calloc((size_t)shape->ranks, sizeof *meetings);
    if (!meetings)
        return -1;
    for (int hop = 0; hop < shape->ranks; hop++) {
        int held = relay_held(rank, hop, shape->ranks);
        int batch = tokens_move ? held : rank, partition = tokens_move ? rank : held;
        meetings[hop] = (struct relay_meeting){.idx = idx[batch],
            .tokens = shape->tokens[batch],
            .first_expert = partition * owned,
            .experts = owned,
            .fresh = !tokens_move || hop == 0};
    }
    int status = relay_plan_make(
        plan, shape->topk, shape->experts, options->hop_rows, meetings, shape->ranks);
    free(meetings);
    return status;
}

int relay_plan_experts(struct relay_plan *plan, const struct moe_shape *shape,
    const struct moe_options *options, int rank, const int32_t *idx)
{
    const int32_t *own[MOE_RANKS_MAX] = {NULL};
    own[rank] = idx;
    return plan_of(plan, shape, options, rank, false, own);
}

int relay_plan_tokens(struct relay_plan *plan, const struct moe_shape *shape,
    const struct moe_options *options, int rank, const int32_t *const *idx)
{
    return plan_of(plan, shape, options, rank, true, idx);
}

/* ---- phases ---------------------------------------------------------------------------------- */

int relay_expert_slots(int ranks, bool backward)
{
    if (backward)
        return ranks > 1 ? 2 : 0;
    return ranks > 2 ? 2 : ranks - 1;
}

struct moe_phase relay_phase(const struct moe_shape *shape, int rank, int slots, int64_t rows,
    int64_t block_bytes, bool backward)
{
    struct moe_phase phase = {{0}};
    int64_t tokens = shape->tokens[rank];
    phase.set_bytes[LIVE_OUTPUT] = moe_rows_bytes(shape, tokens);
    if (backward) {
        phase.set_bytes[LIVE_OUTPUT] += moe_rows_bytes(shape, tokens) + tokens * shape->topk * 4;
        phase.set_bytes[LIVE_GRADIENTS] =
            moe_experts_per_rank(shape) * moe_expert_values(shape) * (int64_t)sizeof(float);
    }
    relay_hop_add_bytes(&phase, shape, slots, rows, block_bytes, backward);
    return phase;
}

static void add_experts(
    struct moe_phase *phase, const struct moe_shape *shape, int rank, bool backward)
{
    int64_t values = moe_experts_per_rank(shape) * moe_expert_values(shape);
    phase->set_bytes[LIVE_RING] +=
        relay_expert_slots(shape->ranks, backward) * values * dtype_bytes(shape->dtype);
    if (backward && shape->ranks > 1)
        phase->set_bytes[LIVE_RING] += 2 * values * (int64_t)sizeof(float);
    if (shape->dtype == DTYPE_BF16)
        phase->set_bytes[LIVE_COMBINE] += shape->tokens[rank] * shape->hidden * 4;
}

static void add_tokens(struct moe_phase *phase, const struct moe_shape *shape, bool backward)
{
    int64_t most = relay_most_tokens(shape), weights = most * shape->topk * 4;
    int64_t rows = moe_rows_bytes(shape, most), sums = most * shape->hidden * 4;
    if (shape->ranks > 1)
        phase->set_bytes[LIVE_RING] +=
            2 * ((backward ? 2 : 1) * rows + weights) + 2 * (sums + (backward ? weights : 0));
    else if (shape->dtype == DTYPE_BF16)
        phase->set_bytes[LIVE_RING] += sums;
}

/* ---- before any routing is known ------------------------------------------------------------- */

static int64_t bound(const struct moe_shape *shape, const struct moe_options *options, int rank,
    int live_set, bool backward, bool tokens_move)
{
    struct moe_phase phases[2];
    int64_t tokens = tokens_move ? relay_most_tokens(shape) : shape->tokens[rank];
    int64_t rows = tokens * shape->topk;
    if (options->hop_rows > 0 && options->hop_rows < rows)
        rows = options->hop_rows;
    int64_t block_bytes = relay_block_bytes(
        moe_experts_per_rank(shape), rows, rows < tokens ? rows : tokens, shape->topk);
    for (int pass = 0; pass <= backward; pass++) {
        phases[pass] = relay_phase(shape, rank, 2, rows, block_bytes, pass);
        if (tokens_move)
            add_tokens(&phases[pass], shape, pass);
        else
            add_experts(&phases[pass], shape, rank, pass);
    }
    struct moe_peaks peaks = moe_phases_peaks(phases, 1 + backward);
    return live_set < 0 ? peaks.all_bytes : peaks.set_bytes[live_set];
}

int64_t relay_expert_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool backward)
{
    return bound(shape, options, rank, live_set, backward, false);
}

int64_t relay_token_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool backward)
{
    return bound(shape, options, rank, live_set, backward, true);
}

/* ---- with the realised routing --------------------------------------------------------------- */

static int expected(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool backward, bool tokens_move, struct moe_peaks *out)
{
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase phases[2];
        struct relay_plan plan;
        if (plan_of(&plan, shape, options, rank, tokens_move, idx))
            return -1;
        for (int pass = 0; pass <= backward; pass++) {
            phases[pass] = relay_phase(shape, rank, relay_hop_slots(plan.piece_count),
                plan.most_rows, plan.most_block_bytes, pass);
            if (tokens_move)
                add_tokens(&phases[pass], shape, pass);
            else
                add_experts(&phases[pass], shape, rank, pass);
        }
        out[rank] = moe_phases_peaks(phases, 1 + backward);
        relay_plan_free(&plan);
    }
    return 0;
}

int relay_expert_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool backward, struct moe_peaks *out)
{
    return expected(shape, options, idx, backward, false, out);
}

int relay_token_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool backward, struct moe_peaks *out)
{
    return expected(shape, options, idx, backward, true, out);
}
