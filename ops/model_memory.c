/* The budget of a composed step: its fullest moments (ops/model_moments.c) with the dispatch's
 * bound in the dispatch's place, told as what stays and what takes turns. */
#include "ops/model_memory.h"
#include <stdlib.h>
#include "ops/model_blocks.h"
#include "ops/model_keep.h"
#include "ops/pipelined_memory.h"

/* What the terms are made of. */
struct sizes {
    const struct model_shape *shape;
    const struct model_options *options;
    int rank;
    int64_t *tokens_of;          /* [W] */
    int64_t tokens, hidden, row; /* N, H, N H b */
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void add(struct model_budget *budget, const char *name, const char *formula, int64_t bytes,
    bool per_context)
{
    budget->term[budget->count++] = (struct model_term){name, formula, bytes, per_context};
}

/* ---- the dispatch, before any routing -------------------------------------------------------- */

static struct moe_shape moe_shape_of(const struct sizes *s)
{
    return (struct moe_shape){.ranks = s->shape->layout.degree[LAYOUT_EXPERTS],
        .tokens = s->tokens_of,
        .hidden = s->hidden,
        .ffn = s->shape->ffn,
        .experts = s->shape->layout.experts,
        .topk = s->shape->topk,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
}

static int place_of(const struct sizes *s)
{
    return s->rank % s->shape->layout.degree[LAYOUT_EXPERTS];
}

/* Of each live set and of all together; zeros where there is no bound. */
static struct moe_peaks bound_of(const struct sizes *s)
{
    const struct moe_impl *impl = s->options->dispatch;
    const struct moe_shape shape = moe_shape_of(s);
    struct moe_peaks peaks = {0};
    if (!impl->bound_bytes)
        return peaks;
    peaks.all_bytes = most(impl->bound_bytes(&shape, &s->options->moe, place_of(s), -1, true), 0);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        peaks.set_bytes[set] =
            most(impl->bound_bytes(&shape, &s->options->moe, place_of(s), set, true), 0);
    return peaks;
}

/* Pinned index arrays. */
static int64_t index_bytes(const struct sizes *s)
{
    const struct moe_shape shape = moe_shape_of(s);
    return s->options->dispatch == &moe_pipelined_llep
               ? pipelined_index_bound_bytes(&shape, &s->options->moe, place_of(s))
               : 0;
}

/* ---- the terms ------------------------------------------------------------------------------- */

/* Boundaries that the implementation leaves on the device; -1 = all activations. */
static int64_t boundary_rows(const struct sizes *s)
{
    const struct stack_impl *impl = s->options->checkpoint;
    struct stack_shape shape = {s->shape->layout.ranks, s->tokens_of, 2 * s->shape->layers,
        s->hidden, s->shape->ffn, DTYPE_BF16};
    int64_t count = impl == &stack_offload_all ? shape.layers : 0;
    if (impl == &stack_full_activations)
        return -1;
    if (impl == &stack_sco)
        count = stack_choose(&shape, &s->options->stack, s->rank, NULL).count;
    return most(impl == &stack_offload_all ? 1 : 2, shape.layers - count);
}

/* What attention keeps beside boundaries. 0, or -1 when memory is short. */
static int kept_bytes(const struct sizes *s, int64_t *bytes)
{
    struct recompute_plan plan = {0};
    int32_t *choice = malloc((size_t)s->shape->layers * sizeof *choice);
    int status = choice ? model_keep_choose(s->shape, s->options, choice, &plan) : -1;
    free(choice);
    *bytes = plan.kept_bytes;
    return status;
}

/* Those that stay while blocks go back. */
static int add_stays(
    struct model_budget *budget, const struct sizes *s, const struct model_moments *moments)
{
    const struct model_shape *shape = s->shape;
    const int64_t *stays = moments->stays_bytes;
    int64_t optimizer = 0, kept = 0;
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        optimizer += set == LIVE_WEIGHTS || set == LIVE_INPUT ? 0 : stays[set];
    add(budget, "weights", "2 Theta_r", stays[LIVE_WEIGHTS] - moments->slices_bytes, false);
    add(budget, "slices", "2 Theta / W", moments->slices_bytes, false);
    add(budget, "optimizer", s->options->optimizer->state_on_device ? "12 Theta / W" : "s beta 16",
        optimizer, false);
    add(budget, "inputs", "18 N + 24 V", stays[LIVE_INPUT], true);
    add(budget, "boundaries", "max(2, 2 L - |S|) N H b", most(boundary_rows(s), 0) * s->row, true);
    add(budget, "output, its gradient, input gradient", "3 N H b", 3 * s->row, true);
    add(budget, "gradient of the norms", "4 (2 L + 1) H", (2 * shape->layers + 1) * s->hidden * 4,
        false);
    if (kept_bytes(s, &kept))
        return -1;
    if (s->options->keep_attention_bytes > 0)
        add(budget, "kept of attention", "<= L (5 N H b + 8 N A + 4 N)", kept, true);
    return 0;
}

static void add_turns(struct model_budget *budget, const struct sizes *s,
    const struct model_moments *moments, const struct model_moments *even)
{
    bool heads = s->shape->layout.degree[LAYOUT_SEQUENCE] > 1;
    const struct {
        const char *name, *formula;
    } turns[MODEL_TURNS] = {
        {"attention", heads ? "13 N H b + 8 N A + 4 N" : "10 N H b + 8 N A + 4 N + 12 H^2"},
        {"dispatch", "Eq. 1 and its experts"}, {"vocabulary", "Eq. 2: a tile, dX, dW, ring"},
        {"embedding", "N H b + 8 V H"}};
    int64_t stay = 0;
    for (int i = 0; i < budget->count; i++)
        stay += budget->term[i].bytes;
    for (int turn = 0; turn < MODEL_TURNS; turn++)
        add(budget, turns[turn].name, turns[turn].formula, moments->turn[turn].all_bytes - stay,
            true);
    budget->balanced_dispatch_bytes = even->turn[MODEL_TURN_EXPERTS].all_bytes - stay;
    budget->turns = MODEL_TURNS;
}

/* ---- without a bound ------------------------------------------------------------------------- */

/* What alltoall keeps of every layer, materialized of the logits, and full-activations of
 * attention: with balanced routing a rank receives as many routes as it sends. */
static void find_unbounded(struct model_budget *budget, const struct sizes *s)
{
    const struct model_shape *shape = s->shape;
    const struct vocab_shape vocab = {
        shape->layout.degree[LAYOUT_VOCAB], s->tokens_of, s->hidden, shape->vocab, DTYPE_BF16};
    bool everything = s->options->checkpoint == &stack_full_activations;
    int64_t layers = everything ? shape->layers : 1, routes = s->tokens * shape->topk;
    bool heads = shape->layout.degree[LAYOUT_SEQUENCE] > 1;
    int64_t bytes[LIVE_SET_COUNT] = {0};
    if (everything)
        bytes[LIVE_ATTENTION] = layers * ((4 + heads) * s->row + 2 * model_normaliser_bytes(shape));
    if (s->options->dispatch == &moe_alltoall) {
        bytes[LIVE_DISPATCH] = layers * 2 * routes * s->hidden * 2;
        bytes[LIVE_COMBINE] = bytes[LIVE_DISPATCH] + routes * s->hidden * 2;
        bytes[LIVE_EXPERT] = layers * 4 * routes * shape->ffn * 2;
    }
    if (!s->options->vocab->bound_bytes)
        bytes[LIVE_LOGITS] = s->options->vocab->expected_bytes(
            &vocab, &s->options->vocab_options, s->rank % vocab.ranks, LIVE_LOGITS, true);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        if (bytes[set] > budget->unbounded_bytes) {
            budget->unbounded_bytes = bytes[set];
            budget->unbounded_set = (enum live_set)set;
        }
    budget->unbounded = !s->options->dispatch->bound_bytes ? s->options->dispatch->name
                        : !s->options->vocab->bound_bytes  ? s->options->vocab->name
                        : everything                       ? s->options->checkpoint->name
                                                           : NULL;
}

/* ---- before anything is counted -------------------------------------------------------------- */

double model_ceiling_bytes(const struct model_shape *shape)
{
    double hidden = (double)shape->hidden, ffn = (double)shape->ffn, vocab = (double)shape->vocab;
    double experts = (double)shape->layout.experts, layers = (double)shape->layers + 1;
    double tokens =
        (double)(shape->length / shape->layout.degree[LAYOUT_SEQUENCE]) * (double)shape->sequences;
    double rows = tokens * shape->topk * shape->layout.ranks;
    double weights = layers * hidden * (4 * hidden + 3 * ffn * experts + experts) + vocab * hidden;
    return 64 * (layers * rows * (hidden + ffn + experts) + tokens * vocab + weights);
}

/* ---- the budget ------------------------------------------------------------------------------ */

static int fill(struct model_budget *budget, const struct sizes *s)
{
    struct model_moments moments, even;
    const struct moe_shape shape = moe_shape_of(s);
    struct moe_peaks any = bound_of(s), balanced = any;
    if (s->options->dispatch == &moe_pipelined_llep)
        balanced = pipelined_balanced_peaks(&shape, &s->options->moe, place_of(s));
    const struct model_dispatch dispatch = {&any, false}, of_even = {&balanced, false};
    if (model_moments(&moments, s->shape, s->options, s->rank, &dispatch) ||
        model_moments(&even, s->shape, s->options, s->rank, &of_even) ||
        add_stays(budget, s, &moments))
        return -1;
    add_turns(budget, s, &moments, &even);
    budget->device_bytes = moments.step.all_bytes;
    budget->balanced_bytes = even.step.all_bytes;
    budget->host_bytes = moments.host_bytes + index_bytes(s);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        budget->set_bytes[set] = moments.step.set_bytes[set];
    find_unbounded(budget, s);
    return 0;
}

int model_budget(struct model_budget *budget, const struct model_shape *shape,
    const struct model_options *options, int rank)
{
    int ranks = shape->layout.ranks;
    struct sizes s = {shape, options, rank, malloc((size_t)ranks * sizeof *s.tokens_of),
        model_tokens(shape), shape->hidden, model_tokens(shape) * shape->hidden * 2};
    *budget = (struct model_budget){.unbounded_set = LIVE_WORKSPACE};
    for (int i = 0; s.tokens_of && i < ranks; i++)
        s.tokens_of[i] = s.tokens;
    int status = s.tokens_of ? fill(budget, &s) : -1;
    free(s.tokens_of);
    return status;
}
