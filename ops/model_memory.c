/* The budget of a composed step: what stays all step long, and the largest of what its phases hold
 * in turn. Every term is what ops/model*.c and the families allocate, at its largest; where a
 * family has a bound of its own the term is that bound. */
#include "ops/model_memory.h"
#include <stdlib.h>
#include "ops/model_keep.h"
#include "ops/model_parts.h"
#include "ops/pipelined_memory.h"

/* What the terms are made of. */
struct sizes {
    const struct model_shape *shape;
    const struct model_options *options;
    int rank, ranks;
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

/* A tensor's gradient on its way: a holder's slice, and the slices of all holders. */
static int64_t slices_bytes(int64_t count, int holders)
{
    int64_t slice = count / holders + 1;
    return (holders + 1) * slice * 4;
}

static int64_t gradient_bytes(int64_t count, int holders)
{
    return count * 4 + slices_bytes(count, holders);
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* n, q, k, v, o and their normalisers; in backward three gradients, their FP32 sum, and where heads
 * are exchanged a block by peer and one of tokens, beside a projection's gradient. */
static int64_t attention_bytes(const struct sizes *s)
{
    int d = s->shape->layout.degree[LAYOUT_SEQUENCE];
    int64_t rows = 5 + (d > 1) + 3 + 2 + (d > 1 ? 2 : 0);
    int64_t normalisers = 3 * s->tokens * s->shape->layout.heads * 4 + s->tokens * 4;
    return rows * s->row + normalisers + gradient_bytes(s->hidden * s->hidden, s->ranks);
}

static int64_t expert_elements(const struct sizes *s)
{
    return s->shape->layout.experts / s->shape->layout.degree[LAYOUT_EXPERTS] * s->shape->ffn *
           s->hidden;
}

/* The dispatch beside what its block keeps; scores before it, the router's backward after it. */
static int64_t expert_bytes(const struct sizes *s, const int64_t *tokens_of, bool balanced)
{
    const struct layout_shape *layout = &s->shape->layout;
    int degree = layout->degree[LAYOUT_EXPERTS];
    const struct moe_shape shape = {.ranks = degree,
        .tokens = tokens_of,
        .hidden = s->hidden,
        .ffn = s->shape->ffn,
        .experts = layout->experts,
        .topk = s->shape->topk,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    const struct moe_impl *impl = s->options->dispatch;
    int64_t bound = impl->bound_bytes
                        ? impl->bound_bytes(&shape, &s->options->moe, s->rank % degree, -1, true)
                        : 0;
    if (balanced && impl == &moe_pipelined_llep)
        bound = pipelined_balanced_bytes(&shape, &s->options->moe, s->rank % degree);
    int64_t routes = s->tokens * s->shape->topk, scores = s->tokens * layout->experts * 4;
    int64_t router =
        scores + routes * 4 + 3 * s->row + gradient_bytes(layout->experts * s->hidden, s->ranks);
    int64_t sent = slices_bytes(expert_elements(s), s->ranks / degree);
    return 2 * s->row + s->tokens * 4 + routes * 4 + most(bound, 0) + most(router, sent);
}

static int64_t head_bytes(const struct sizes *s, const int64_t *tokens_of)
{
    int degree = s->shape->layout.degree[LAYOUT_VOCAB], place = s->rank % degree;
    const struct vocab_shape shape = {degree, tokens_of, s->hidden, s->shape->vocab, DTYPE_BF16};
    const struct vocab_impl *impl = s->options->vocab;
    int64_t bound =
        impl->bound_bytes ? impl->bound_bytes(&shape, &s->options->vocab_options, place, true) : 0;
    int64_t shard = vocab_shard_rows(s->shape->vocab, degree, place) * s->hidden;
    return s->row + s->tokens * 4 + bound + slices_bytes(shard, s->ranks / degree);
}

static int64_t embedding_bytes(const struct sizes *s)
{
    return s->row + gradient_bytes(s->shape->vocab * s->hidden, s->ranks);
}

/* ---- what stays ------------------------------------------------------------------------------ */

/* Boundaries that the implementation leaves on the device; -1 = all activations. */
static int64_t boundary_rows(const struct sizes *s, const int64_t *tokens_of, int64_t *host_bytes)
{
    const struct stack_impl *impl = s->options->checkpoint;
    struct stack_shape shape = {
        s->ranks, tokens_of, 2 * s->shape->layers, s->hidden, s->shape->ffn, DTYPE_BF16};
    *host_bytes = 0;
    if (impl == &stack_full_activations)
        return -1;
    if (impl == &stack_resident)
        return shape.layers;
    int64_t count = shape.layers;
    if (impl == &stack_sco)
        count = stack_choose(&shape, &s->options->stack, s->rank, NULL).count;
    *host_bytes = count * sco_pinned_bytes(s->row, s->options->stack.budget.rounding);
    return most(2, shape.layers - count);
}

/* What attention keeps beside boundaries; sets *status when memory is short. */
static int64_t kept_bytes(const struct sizes *s, int *status)
{
    struct recompute_plan plan = {0};
    int32_t *choice = malloc((size_t)s->shape->layers * sizeof *choice);
    if (!choice || model_keep_choose(s->shape, s->options, choice, &plan))
        *status = -1;
    free(choice);
    return plan.kept_bytes;
}

/* The tables and a batch. */
static int64_t input_bytes(const struct sizes *s)
{
    int64_t d = s->shape->layout.degree[LAYOUT_SEQUENCE];
    int64_t tables = d > 1 ? 2 * s->tokens * d * 4 : 0;
    int64_t groups = (s->shape->vocab + 1) * (int64_t)sizeof(struct expert_group);
    return tables + groups + s->tokens * (2 + 4 + 8 + 4);
}

/* Weights and optimizer, from the parts that the rank holds. */
static int add_parameters(struct model_budget *budget, const struct sizes *s)
{
    struct model m = {.shape = *s->shape, .options = *s->options, .rank = s->rank};
    struct adamw_plan plan = {0};
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        m.layout.block[i] = layout_block(&s->shape->layout, i, s->rank);
        m.layout.replicas[i] = layout_replicas(&s->shape->layout, i, s->rank);
    }
    if (model_parts_init(&m))
        return -1;
    struct adamw_options options =
        adamw_resolve(s->options->optimizer, &m.flat, &s->options->adamw);
    int status = options.whole_tensors ? adamw_plan_whole_tensors(&plan, &m.flat, options.bucket)
                                       : adamw_plan_cut(&plan, &m.flat, options.bucket);
    if (status == 0) {
        int64_t biases = s->shape->layers * s->shape->layout.experts * 4;
        const struct adamw_impl *impl = s->options->optimizer;
        add(budget, "weights", "2 Theta_r", model_resident_elements(&m) * 2 + biases, false);
        add(budget, "slices", "2 Theta / W", m.flat.params * 2, false);
        add(budget, "optimizer", impl->state_on_device ? "12 Theta / W" : "s beta 16",
            impl->expected_bytes(&m.flat, &options, &plan, -1), false);
        budget->host_bytes += m.flat.params * 4 +
                              impl->expected_host_bytes(&m.flat, &options, &plan, -1) +
                              s->tokens * s->shape->topk * 4;
    }
    adamw_plan_free(&plan);
    model_parts_free(&m);
    return status;
}

/* Those that stay, and the largest of those that take turns. */
static int64_t all_terms(const struct model_budget *budget)
{
    int64_t sum = 0, largest = 0;
    for (int i = 0; i < budget->count; i++) {
        if (i < budget->count - budget->turns)
            sum += budget->term[i].bytes;
        else
            largest = most(largest, budget->term[i].bytes);
    }
    return sum + largest;
}

int model_budget(struct model_budget *budget, const struct model_shape *shape,
    const struct model_options *options, int rank)
{
    struct sizes s = {
        shape, options, rank, shape->layout.ranks, model_tokens(shape), shape->hidden, 0};
    int64_t *tokens_of = malloc((size_t)s.ranks * sizeof *tokens_of), pinned = 0;
    *budget = (struct model_budget){0};
    if (!tokens_of)
        return -1;
    for (int i = 0; i < s.ranks; i++)
        tokens_of[i] = s.tokens;
    s.row = s.tokens * s.hidden * 2;
    int status = add_parameters(budget, &s);
    int64_t rows = boundary_rows(&s, tokens_of, &pinned);
    budget->host_bytes += pinned;
    add(budget, "inputs", "18 N + 24 V", input_bytes(&s), true);
    add(budget, "boundaries", "max(2, 2 L - |S|) N H b", most(rows, 0) * s.row, true);
    add(budget, "output, its gradient, input gradient", "3 N H b", 3 * s.row, true);
    add(budget, "gradient of the norms", "4 (2 L + 1) H",
        gradient_bytes((2 * shape->layers + 1) * s.hidden, s.ranks), false);
    if (options->keep_attention_bytes > 0)
        add(budget, "kept of attention", "<= L (5 N H b + 8 N A + 4 N)", kept_bytes(&s, &status),
            true);
    add(budget, "attention, or", "12 N H b + 12 N A + 8 H^2", attention_bytes(&s), true);
    add(budget, "dispatch, or", "Eq. 1 and its experts", expert_bytes(&s, tokens_of, false), true);
    add(budget, "vocabulary, or", "Eq. 2: a tile, dX, dW, ring", head_bytes(&s, tokens_of), true);
    add(budget, "embedding", "N H b + 8 V H", embedding_bytes(&s), true);
    budget->turns = 4;
    int64_t balanced = budget->term[budget->count - 3].bytes; /* of dispatch, by any routing */
    budget->device_bytes = all_terms(budget);
    budget->term[budget->count - 3].bytes = expert_bytes(&s, tokens_of, true);
    budget->balanced_bytes = all_terms(budget);
    budget->term[budget->count - 3].bytes = balanced;
    if (!options->dispatch->bound_bytes)
        budget->unbounded = options->dispatch->name;
    else if (!options->vocab->bound_bytes)
        budget->unbounded = options->vocab->name;
    else if (rows < 0)
        budget->unbounded = options->checkpoint->name;
    free(tokens_of);
    return status;
}
