/* The step cut into moments, each with what it holds of every live set. A block holds most in its
 * backward: it then has beside what its forward made again three rows more, y, dy and dx, and the
 * norms' gradient. So forward blocks appear nowhere here.
 *
 *   boundaries in the backward of block l      x(l), with sco x(l - 1) coming back, and those below
 *                                              that never left
 *   attention   n, scales, q, k, v, o, two normalisers, and in turn: a projection's gradient;
 *               heads by peer and the other side of an exchange; three gradients and their deltas;
 *               the FP32 sum of three products
 *   experts     n, scales, router weights, and in turn: scores; the dispatch; its gradients; the
 *               router's backward
 *   head        the last norm's n and scales, and in turn: the projection; the gradient of the norm
 *   embedding   sorted gradients, and the gradient; then the norms'
 *
 * Beside each of them one gradient is on its way (ops/model_parts.h): the one that was whole
 * before, which is freed when the next one is. */
#include "ops/model_moments.h"
#include <stdlib.h>
#include "kernels/moe.h"
#include "ops/model_blocks.h"
#include "ops/model_keep.h"
#include "ops/model_parts.h"

struct moments {
    struct model m; /* its parts and layout alone */
    struct model_moments *out;
    const struct model_dispatch *dispatch;
    int64_t tokens, row, scales, normaliser; /* N, N H b, 4 N, 4 N A */
    int32_t *keep_choice;                    /* [L] */
    int64_t count;                           /* boundaries that go to the host */
    bool restores_ahead;                     /* sco's x(l - 1), while block l works */
};

/* One moment: what of each set is live. */
struct held {
    int64_t set_bytes[LIVE_SET_COUNT];
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- adding moments up ----------------------------------------------------------------------- */

static void raise(struct moe_peaks *peaks, const struct moe_peaks *by)
{
    peaks->all_bytes = most(peaks->all_bytes, by->all_bytes);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        peaks->set_bytes[set] = most(peaks->set_bytes[set], by->set_bytes[set]);
}

/* A moment of a turn, with the peaks of something that runs meanwhile (NULL: nothing). */
static void note(struct moments *s, enum model_turn turn, const struct held *held,
    const struct moe_peaks *meanwhile)
{
    struct moe_peaks peaks = {0};
    if (meanwhile)
        peaks = *meanwhile;
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        int64_t bytes = s->out->stays_bytes[set] + held->set_bytes[set];
        peaks.set_bytes[set] += bytes;
        peaks.all_bytes += bytes;
    }
    raise(&s->out->turn[turn], &peaks);
    raise(&s->out->step, &peaks);
}

static struct held plus(struct held held, enum live_set set, int64_t bytes)
{
    held.set_bytes[set] += bytes;
    return held;
}

/* A gradient. */
static struct held gradient(
    const struct moments *s, struct held held, enum model_tensor tensor, int64_t layer)
{
    return plus(held, LIVE_GRADIENTS, model_part_of(&s->m, tensor, layer)->count * 4);
}

/* What it takes beside itself while it leaves: this rank's slice, and the slices of all holders. */
static struct held slices(
    const struct moments *s, struct held held, enum model_tensor tensor, int64_t layer)
{
    const struct model_part *part = model_part_of(&s->m, tensor, layer);
    if (part->holders.size == 1)
        return held;
    held = plus(held, LIVE_GRADIENTS, part->slice * 4);
    return plus(held, LIVE_WORKSPACE, part->holders.size * part->slice * 4);
}

/* A gradient on its way. */
static struct held leaving(
    const struct moments *s, struct held held, enum model_tensor tensor, int64_t layer)
{
    return slices(s, gradient(s, held, tensor, layer), tensor, layer);
}

/* ---- what stays ------------------------------------------------------------------------------ */

static int64_t input_bytes(const struct model_shape *shape)
{
    int64_t tokens = model_tokens(shape), d = shape->layout.degree[LAYOUT_SEQUENCE];
    int64_t tables = d > 1 ? 2 * tokens * d * 4 : 0;
    int64_t groups = (shape->vocab + 1) * (int64_t)sizeof(struct expert_group);
    struct rotary_args places = model_rotary(shape);
    int64_t turns = places.run * 2 * (places.head_columns / 2) * 4;
    return tables + turns + groups + tokens * (2 + 4 + 8 + 4);
}

/* On the device and pinned. */
static int add_optimizer(struct moments *s)
{
    struct adamw_plan plan = {0};
    const struct adamw_impl *impl = s->m.options.optimizer;
    struct adamw_options options = adamw_resolve(impl, &s->m.flat, &s->m.options.adamw);
    int status = options.whole_tensors ? adamw_plan_whole_tensors(&plan, &s->m.flat, options.bucket)
                                       : adamw_plan_cut(&plan, &s->m.flat, options.bucket);
    for (int set = 0; status == 0 && set < LIVE_SET_COUNT; set++)
        s->out->stays_bytes[set] += impl->expected_bytes(&s->m.flat, &options, &plan, set);
    if (status == 0)
        s->out->host_bytes += impl->expected_host_bytes(&s->m.flat, &options, &plan, -1);
    adamw_plan_free(&plan);
    return status;
}

static int add_stays(struct moments *s)
{
    const struct model_shape *shape = &s->m.shape;
    int64_t biases = shape->layers * shape->layout.experts * 4;
    s->out->stays_bytes[LIVE_WEIGHTS] =
        (model_resident_elements(&s->m) + s->m.flat.params) * 2 + biases;
    s->out->slices_bytes = s->m.flat.params * 2;
    s->out->stays_bytes[LIVE_INPUT] = input_bytes(shape);
    s->out->host_bytes = s->m.flat.params * 4 + s->tokens * shape->topk * 4 +
                         s->count * sco_pinned_bytes(s->row, s->m.options.stack.budget.rounding);
    return add_optimizer(s);
}

/* ---- boundaries and what attention keeps ----------------------------------------------------- */

/* On the device while block l goes back, and between forward and backward (l = 2 L). */
static int64_t boundaries(const struct moments *s, int64_t l)
{
    int64_t left = most(l - s->count, 0);
    if (l == 2 * s->m.shape.layers)
        return left;
    return left + 1 + (s->restores_ahead && l >= 1 && l - 1 < s->count);
}

/* Of the layers below `layer`. */
static struct held plus_kept(const struct moments *s, struct held held, int64_t layer)
{
    for (int64_t l = 0; l < layer; l++) {
        if (s->keep_choice[l] >= MODEL_KEEP_OUTPUT)
            held = plus(held, LIVE_ATTENTION, s->row + 2 * s->normaliser);
        if (s->keep_choice[l] >= MODEL_KEEP_PROJECTIONS)
            held = plus(held, LIVE_ATTENTION, 3 * s->row);
        if (s->keep_choice[l] >= MODEL_KEEP_NORMED)
            held = plus(held, LIVE_WORKSPACE, s->row + s->scales);
    }
    return held;
}

/* The norms' gradient, dy, and y; with the blocks also dx. */
static struct held backward(const struct moments *s, bool blocks)
{
    int64_t gains = model_part_of(&s->m, MODEL_GAINS, -1)->count * 4;
    struct held held = {{0}};
    held = plus(held, LIVE_GRADIENTS, gains);
    held = plus(held, LIVE_BOUNDARY, blocks ? s->row : 0);
    return plus(held, LIVE_OUTPUT, blocks ? 2 * s->row : s->row);
}

/* A block's own: its boundaries, its norm. */
static struct held of_block(const struct moments *s, int64_t l)
{
    struct held held = plus(backward(s, true), LIVE_BOUNDARY, boundaries(s, l) * s->row);
    return plus(held, LIVE_WORKSPACE, s->row + s->scales);
}

/* ---- the turns ------------------------------------------------------------------------------- */

static struct held attention_rows(
    const struct moments *s, struct held held, int64_t rows, int normalisers)
{
    return plus(held, LIVE_ATTENTION, rows * s->row + normalisers * s->normaliser);
}

/* q, k, v, o, with exchanged heads o of the tokens as well; d_o; then the three gradients. */
static void note_attention(struct moments *s, int64_t layer)
{
    const enum model_turn turn = MODEL_TURN_ATTENTION;
    bool heads = s->m.shape.layout.degree[LAYOUT_SEQUENCE] > 1;
    int64_t kept = 4 + heads;
    struct held block = plus_kept(s, of_block(s, 2 * layer), layer);
    struct held moment = attention_rows(s, leaving(s, block, MODEL_ROUTER, layer), kept + 1, 2);
    moment = gradient(s, moment, MODEL_O, layer);
    note(s, turn, &moment, NULL);
    block = leaving(s, block, MODEL_O, layer);
    moment = attention_rows(s, block, kept + 1, 2);
    note(s, turn, &moment, NULL);
    if (heads) { /* d_o of tokens, by peer and of heads; later a gradient on its way back */
        moment = attention_rows(s, block, kept + 3, 2);
        note(s, turn, &moment, NULL);
        moment = attention_rows(s, block, kept + 7, 2);
        note(s, turn, &moment, NULL);
    }
    moment = attention_rows(s, block, kept + 4, 3);
    note(s, turn, &moment, NULL);
    moment = attention_rows(s, block, kept + 5, 2);
    moment = gradient(s, moment, MODEL_Q, layer);
    note(s, turn, &moment, NULL);
}

static const struct moe_peaks *peaks_of(const struct moments *s, int64_t layer)
{
    return &s->dispatch->peaks[s->dispatch->by_layer ? layer : 0];
}

/* With a backward that stands alone there is no Y, which the dispatch's peaks count. */
static void note_experts(struct moments *s, int64_t layer)
{
    const enum model_turn turn = MODEL_TURN_EXPERTS;
    const struct model_shape *shape = &s->m.shape;
    int64_t routes = s->tokens * shape->topk, scores = s->tokens * shape->layout.experts * 4;
    int64_t owned = 3 * model_part_of(&s->m, MODEL_GATE, layer)->count * 4;
    bool alone = s->m.options.dispatch->backward_alone;
    struct held block = plus_kept(s, of_block(s, 2 * layer + 1), layer + 1);
    block = plus(block, LIVE_WORKSPACE, routes * 4);
    struct held begin = layer + 1 < shape->layers ? leaving(s, block, MODEL_V, layer + 1) : block;
    struct held moment = plus(begin, LIVE_WORKSPACE, scores + routes * 4);
    note(s, turn, &moment, NULL);
    moment = plus(begin, LIVE_OUTPUT, alone ? -s->row : 0);
    note(s, turn, &moment, peaks_of(s, layer));
    block = plus(block, LIVE_OUTPUT, (alone ? 1 : 2) * s->row + routes * 4); /* dX, dw */
    moment = slices(s, plus(block, LIVE_GRADIENTS, owned), MODEL_GATE, layer);
    note(s, turn, &moment, NULL);
    block = plus(block, LIVE_WORKSPACE, routes * 4 + scores + 3 * s->row);
    moment = gradient(s, leaving(s, block, MODEL_DOWN, layer), MODEL_ROUTER, layer);
    note(s, turn, &moment, NULL);
    moment = leaving(s, block, MODEL_ROUTER, layer);
    note(s, turn, &moment, NULL);
}

static void note_head(struct moments *s, const int64_t *tokens_of)
{
    const enum model_turn turn = MODEL_TURN_HEAD;
    const struct vocab_impl *impl = s->m.options.vocab;
    const struct vocab_options *options = &s->m.options.vocab_options;
    struct layout_group block = s->m.layout.block[LAYOUT_VOCAB];
    const struct vocab_shape shape = {
        block.size, tokens_of, s->m.shape.hidden, s->m.shape.vocab, DTYPE_BF16};
    int64_t layers = s->m.shape.layers, place = block.place;
    struct moe_peaks peaks = {
        .all_bytes = impl->expected_bytes(&shape, options, block.place, -1, true)};
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        peaks.set_bytes[set] = impl->expected_bytes(&shape, options, (int)place, set, true);
    struct held held = plus_kept(s, backward(s, false), layers);
    held = plus(held, LIVE_BOUNDARY, boundaries(s, 2 * layers) * s->row);
    held = plus(held, LIVE_WORKSPACE, s->row + s->scales);
    note(s, turn, &held, &peaks);
    held = plus(held, LIVE_OUTPUT, VOCAB_TOKEN_OUTPUT_BYTES * s->tokens + s->row);
    held = plus(held, LIVE_GRADIENTS,
        impl == &vocab_ring_dtp /* where shards travel, room for the largest of them */
            ? peaks.set_bytes[LIVE_GRADIENTS]
            : model_part_of(&s->m, MODEL_HEAD, -1)->count * 4);
    held = plus(held, LIVE_BOUNDARY, s->row);
    held = slices(s, held, MODEL_HEAD, -1);
    note(s, turn, &held, NULL);
}

static void note_embedding(struct moments *s)
{
    const enum model_turn turn = MODEL_TURN_EMBEDDING;
    struct held held = backward(s, true);
    struct held sorted = plus(held, LIVE_WORKSPACE, s->row);
    struct held moment = gradient(s, leaving(s, sorted, MODEL_V, 0), MODEL_EMBEDDING, -1);
    note(s, turn, &moment, NULL);
    moment = leaving(s, sorted, MODEL_EMBEDDING, -1);
    note(s, turn, &moment, NULL);
    moment = slices(s, held, MODEL_GAINS, -1);
    note(s, turn, &moment, NULL);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int choose(struct moments *s, const int64_t *tokens_of)
{
    const struct model_shape *shape = &s->m.shape;
    const struct stack_impl *impl = s->m.options.checkpoint;
    struct recompute_plan plan;
    struct stack_shape stack = {
        shape->layout.ranks, tokens_of, 2 * shape->layers, shape->hidden, shape->ffn, DTYPE_BF16};
    s->restores_ahead = impl == &stack_sco;
    if (impl == &stack_sco)
        s->count = stack_choose(&stack, &s->m.options.stack, s->m.rank, NULL).count;
    else if (impl == &stack_offload_all)
        s->count = stack.layers;
    s->keep_choice = malloc((size_t)shape->layers * sizeof *s->keep_choice);
    return s->keep_choice ? model_keep_choose(shape, &s->m.options, s->keep_choice, &plan) : -1;
}

int model_moments(struct model_moments *out, const struct model_shape *shape,
    const struct model_options *options, int rank, const struct model_dispatch *dispatch)
{
    struct moments s = {.m = {.shape = *shape, .options = *options, .rank = rank},
        .out = out,
        .dispatch = dispatch};
    int64_t *tokens_of = malloc((size_t)shape->layout.ranks * sizeof *tokens_of);
    *out = (struct model_moments){0};
    s.tokens = model_tokens(shape);
    s.row = s.tokens * shape->hidden * 2;
    s.scales = s.tokens * 4;
    s.normaliser = s.tokens * shape->layout.heads * 4;
    for (int i = 0; tokens_of && i < shape->layout.ranks; i++)
        tokens_of[i] = s.tokens;
    int status = tokens_of && model_parts_plan(&s.m) == 0 ? 0 : -1;
    if (status == 0)
        status = choose(&s, tokens_of) || add_stays(&s) ? -1 : 0;
    for (int64_t layer = 0; status == 0 && layer < shape->layers; layer++) {
        note_attention(&s, layer);
        note_experts(&s, layer);
    }
    if (status == 0) {
        note_head(&s, tokens_of);
        note_embedding(&s);
    }
    free(s.keep_choice);
    free(tokens_of);
    model_parts_free(&s.m);
    return status;
}
