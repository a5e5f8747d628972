/* Memory and order of pipelined-llep, with W values in an expert, R = P k c_eff (all routes of one
 * chunk at one rank: Eq. 1) and S = k c_eff:
 *
 *   dispatch    2 R H b                    received rows of X; half of it with a single chunk
 *   combine     2 R H b                    expert outputs; in backward dY rows, then dX rows;
 *                                          likewise half
 *   staging     2 S H b                    rows on their way out, rows come home
 *   expert      2 R F b, in backward R (3 F + H) b             (ReLU: one F less)
 *   workspace   indices; in backward a few values per route, a helper's gradient on its way home
 *   weights     (E - E/P) W b              experts lent, in the worst case all
 *   gradients   4 E W                      owned and lent
 *
 * With the realised plan the same terms stand with the largest realised chunk of the rank in place
 * of R and S, and the experts that it was lent in place of E - E/P. */
#include "ops/pipelined_memory.h"
#include "ops/moe_expert.h"
#include "ops/moe_lend.h"
#include "ops/moe_memory.h"

int pipelined_slots(int64_t chunks)
{
    return chunks > 1 ? 2 : 1;
}

struct moe_partition pipelined_partition(
    const struct moe_shape *shape, const struct moe_options *options)
{
    return (struct moe_partition){moe_chunk_count(shape, options), options->chunks};
}

struct llep_options pipelined_planner(const struct moe_options *options)
{
    return (struct llep_options){.alpha = options->alpha,
        .min_gemm_tokens = options->min_gemm_tokens,
        .lambda = options->lambda};
}

/* What the slots and the workspace of a pass take, for chunks of at most `sent` and `received`
 * rows. */
static void add_slots(struct moe_phase *phase, const struct moe_shape *shape, int slots,
    int64_t sent, int64_t received, bool backward)
{
    int64_t *set = phase->set_bytes;
    set[LIVE_DISPATCH] += slots * moe_rows_bytes(shape, received);
    set[LIVE_COMBINE] += slots * moe_rows_bytes(shape, received);
    set[LIVE_STAGING] += 2 * moe_rows_bytes(shape, sent);
    set[LIVE_EXPERT] += moe_hidden_bytes(shape, received, backward);
    if (backward) /* router weights and their gradients */
        set[LIVE_WORKSPACE] += (2 * sent + 2 * slots * received) * (int64_t)sizeof(float);
}

/* ---- before any routing is known ------------------------------------------------------------- */

/* With rows for at most `groups` experts in every chunk. */
static int64_t index_most(const struct moe_shape *shape, int64_t chunks, int rank, int64_t groups)
{
    int64_t tokens = shape->tokens[rank];
    return chunks * groups * (int64_t)sizeof(struct expert_group) +
           (3 * tokens * shape->topk + tokens) * (int64_t)sizeof(int32_t);
}

static struct moe_phase bound(
    const struct moe_shape *shape, int64_t chunks, int rank, bool with_backward)
{
    int64_t tokens = shape->tokens[rank], values = moe_expert_values(shape);
    int64_t sent = shape->topk * moe_chunk_tokens_max(shape, chunks);
    struct moe_phase most = {{0}};
    int64_t *set = most.set_bytes;
    set[LIVE_OUTPUT] = moe_rows_bytes(shape, tokens);
    set[LIVE_WORKSPACE] = index_most(shape, chunks, rank, shape->experts);
    set[LIVE_WEIGHTS] =
        (shape->experts - moe_experts_per_rank(shape)) * values * dtype_bytes(shape->dtype);
    add_slots(&most, shape, pipelined_slots(chunks), sent, shape->ranks * sent, with_backward);
    if (with_backward) {
        set[LIVE_OUTPUT] += moe_rows_bytes(shape, tokens) + tokens * shape->topk * 4;
        set[LIVE_GRADIENTS] = shape->experts * values * 4;
        set[LIVE_WORKSPACE] += shape->ranks > 1 ? values * 4 : 0; /* with helpers */
    }
    return most;
}

int64_t pipelined_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool with_backward)
{
    struct moe_phase most = bound(shape, moe_chunk_count(shape, options), rank, with_backward);
    struct moe_peaks peaks = moe_phases_peaks(&most, 1);
    return live_set < 0 ? peaks.all_bytes : peaks.set_bytes[live_set];
}

int64_t pipelined_index_bound_bytes(
    const struct moe_shape *shape, const struct moe_options *options, int rank)
{
    return index_most(shape, moe_chunk_count(shape, options), rank, shape->experts);
}

struct moe_peaks pipelined_balanced_peaks(
    const struct moe_shape *shape, const struct moe_options *options, int rank)
{
    int64_t chunks = moe_chunk_count(shape, options), tokens = shape->tokens[rank];
    int64_t sent = shape->topk * moe_chunk_tokens_max(shape, chunks);
    int64_t owned = moe_experts_per_rank(shape) * moe_expert_values(shape);
    struct moe_phase phase = {{0}};
    add_slots(&phase, shape, pipelined_slots(chunks), sent, sent, true);
    phase.set_bytes[LIVE_OUTPUT] = 2 * moe_rows_bytes(shape, tokens) + tokens * shape->topk * 4;
    phase.set_bytes[LIVE_WORKSPACE] += index_most(shape, chunks, rank, moe_experts_per_rank(shape));
    phase.set_bytes[LIVE_GRADIENTS] = owned * 4;
    return moe_phases_peaks(&phase, 1);
}

/* ---- with the realised plan ------------------------------------------------------------------ */

static int layout_of(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_layout *layout)
{
    struct moe_partition partition = pipelined_partition(shape, options);
    struct llep_options planner = pipelined_planner(options);
    return moe_layout_from_routing(layout, shape, &partition, &planner, idx);
}

static struct moe_peaks expected(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank, bool with_backward)
{
    int slots = pipelined_slots(layout->partition.chunks);
    int64_t sent = moe_layout_most_sent(layout, rank);
    int64_t received = moe_layout_most_received(layout, rank);
    int64_t lent = moe_lent_weight_bytes(shape, layout, rank);
    struct moe_phase phases[3] = {moe_phase_forward(shape, layout, rank)};
    phases[0].set_bytes[LIVE_WEIGHTS] = lent;
    add_slots(&phases[0], shape, slots, sent, received, false);
    if (with_backward) {
        phases[1] = phases[2] = moe_phase_backward(shape, layout, rank);
        phases[1].set_bytes[LIVE_WEIGHTS] = lent;
        add_slots(&phases[1], shape, slots, sent, received, true);
        /* helpers' gradients on their way home, when the slots are free again */
        phases[2].set_bytes[LIVE_WORKSPACE] += moe_lent_return_bytes(layout, shape, rank);
    }
    return moe_phases_peaks(phases, with_backward ? 3 : 1);
}

int pipelined_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    struct moe_layout layout;
    if (layout_of(shape, options, idx, &layout))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++)
        out[rank] = expected(shape, &layout, rank, with_backward);
    moe_layout_free(&layout);
    return 0;
}

int pipelined_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    struct moe_layout layout;
    if (layout_of(shape, options, idx, &layout))
        return -1;
    int status = moe_layout_order(&layout, idx, out);
    moe_layout_free(&layout);
    return status;
}
