#include "tests/moe_schedule_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"

/* ---- inputs -----------------------------------------------------------------------------------
 */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ (*state >> 29);
    return (x * 0x9e3779b97f4a7c15u) >> 32;
}

static int64_t below(uint64_t *state, int64_t limit)
{
    return (int64_t)(next_random(state) % (uint64_t)limit);
}

/* Values in [-scale, scale). */
static void *random_values(enum dtype type, int64_t count, float scale, uint64_t *state)
{
    void *values = malloc((size_t)(count * dtype_bytes(type)) + 1);
    for (int64_t i = 0; values && i < count; i++) {
        float v = ((float)below(state, 1 << 20) / (float)(1 << 19) - 1.0f) * scale;
        if (type == DTYPE_BF16)
            ((uint16_t *)values)[i] = f32_to_bf16(v);
        else
            ((float *)values)[i] = v;
    }
    return values;
}

static int32_t choose(const struct moe_shape *s, enum moe_case_routing routing, uint64_t *state)
{
    int64_t owned = moe_experts_per_rank(s);
    switch (routing) {
    case ROUTE_RANDOM:
        break;
    case ROUTE_SKEWED:
        if (below(state, 4))
            return (int32_t)below(state, 1 + s->experts / 4);
        break;
    case ROUTE_ONE_EXPERT:
        return (int32_t)(s->experts - 1);
    case ROUTE_ONE_RANK:
        return (int32_t)((s->ranks - 1) * owned + below(state, owned));
    }
    return (int32_t)below(state, s->experts);
}

int moe_case_init(struct moe_case *c, const struct moe_shape *shape, const int64_t *tokens,
    enum moe_case_routing routing, int empty_every, uint64_t seed)
{
    uint64_t state = seed + 1;
    *c = (struct moe_case){.shape = *shape};
    for (int r = 0; r < shape->ranks; r++)
        c->all_tokens += c->tokens[r] = tokens[r];
    c->shape.tokens = c->tokens;
    enum dtype type = shape->dtype;
    int64_t rows = c->all_tokens * shape->hidden, slots = c->all_tokens * shape->topk;
    int64_t matrices = shape->experts * shape->hidden * shape->ffn;
    c->x = random_values(type, rows, 1.0f, &state);
    c->dy = random_values(type, rows, 1.0f, &state);
    c->weight = random_values(DTYPE_F32, slots, 1.0f, &state);
    if (shape->activation == MOE_SWIGLU)
        c->gate = random_values(type, matrices, 0.5f, &state);
    c->up = random_values(type, matrices, 0.5f, &state);
    c->down = random_values(type, matrices, 0.5f, &state);
    c->idx = malloc((size_t)slots * sizeof *c->idx + 1);
    if (!c->x || !c->dy || !c->weight || !c->up || !c->down || !c->idx)
        return -1;
    for (int64_t i = 0; i < slots; i++)
        c->idx[i] = empty_every && below(&state, empty_every) == 0
                        ? MOE_EMPTY
                        : choose(&c->shape, routing, &state);
    for (int64_t r = 0, at = 0; r < shape->ranks; at += tokens[r++] * shape->topk)
        c->rank_idx[r] = c->idx + at;
    return 0;
}

void moe_case_free(struct moe_case *c)
{
    free(c->x);
    free(c->dy);
    free(c->weight);
    free(c->gate);
    free(c->up);
    free(c->down);
    free(c->idx);
    *c = (struct moe_case){0};
}

/* ---- results ----------------------------------------------------------------------------------
 */

void moe_case_result_free(struct moe_case_result *r)
{
    free(r->y);
    free(r->dx);
    free(r->router_gradient);
    free(r->gate_gradient);
    free(r->up_gradient);
    free(r->down_gradient);
    *r = (struct moe_case_result){0};
}

/* Filled with garbage, so that what is not written is seen. */
static void *garbage(int64_t bytes)
{
    void *block = malloc((size_t)bytes + 1);
    if (block)
        memset(block, 0xa5, (size_t)bytes + 1);
    return block;
}

static int result_init(const struct moe_case *c, struct moe_case_result *r)
{
    const struct moe_shape *s = &c->shape;
    int64_t rows_bytes = c->all_tokens * s->hidden * dtype_bytes(s->dtype);
    int64_t matrices_bytes = s->experts * s->hidden * s->ffn * 4;
    *r = (struct moe_case_result){.y = garbage(rows_bytes),
        .dx = garbage(rows_bytes),
        .router_gradient = garbage(c->all_tokens * s->topk * 4),
        .gate_gradient = garbage(matrices_bytes),
        .up_gradient = garbage(matrices_bytes),
        .down_gradient = garbage(matrices_bytes)};
    return r->y && r->dx && r->router_gradient && r->gate_gradient && r->up_gradient &&
                   r->down_gradient
               ? 0
               : -1;
}

int moe_case_reference_in(const struct moe_case *c, const struct moe_order *order,
    struct moe_case_result *result, char *why, int size)
{
    const struct moe_shape *s = &c->shape;
    struct ref_moe_problem problem = {.tokens = c->all_tokens,
        .hidden = s->hidden,
        .ffn = s->ffn,
        .experts = s->experts,
        .topk = s->topk,
        .dtype = s->dtype,
        .x = c->x,
        .idx = c->idx,
        .weight = c->weight,
        .gate = c->gate,
        .up = c->up,
        .down = c->down,
        .dy = c->dy};
    snprintf(why, (size_t)size, "no memory for the reference");
    if (result_init(c, result))
        return -1;
    struct ref_moe_result out = {.y = result->y,
        .dx = result->dx,
        .router_gradient = result->router_gradient,
        .gate_gradient = result->gate_gradient,
        .up_gradient = result->up_gradient,
        .down_gradient = result->down_gradient};
    return ref_moe(&problem, order, &out, why, size);
}

int moe_case_reference(const struct moe_case *c, const struct moe_impl *impl,
    const struct moe_options *options, struct moe_case_result *result, char *why, int size)
{
    const struct moe_shape *s = &c->shape;
    struct moe_order order;
    snprintf(why, (size_t)size, "no memory for the reference");
    if (moe_order_init(&order, c->all_tokens, s->topk, s->experts, c->idx))
        return -1;
    int status = impl && impl->order(s, options, c->rank_idx, &order) ? -1 : 0;
    if (status == 0)
        status = moe_case_reference_in(c, &order, result, why, size);
    moe_order_free(&order);
    return status;
}

static bool tensor_equal(const char *name, enum dtype type, const void *got, const void *want,
    int64_t rows, int64_t columns, char *why, int size)
{
    struct check_difference difference;
    int64_t shape[2] = {rows, columns};
    if (check_equal(type, got, want, rows * columns, &difference))
        return true;
    check_describe(name, 2, shape, &difference, why, size);
    return false;
}

bool moe_case_equal(const struct moe_case *c, const struct moe_case_result *got,
    const struct moe_case_result *want, bool forward_only, char *why, int size)
{
    const struct moe_shape *s = &c->shape;
    int64_t n = c->all_tokens, rows = s->experts * s->ffn, down_rows = s->experts * s->hidden;
    if (!tensor_equal("Y", s->dtype, got->y, want->y, n, s->hidden, why, size))
        return false;
    if (forward_only)
        return true;
    return tensor_equal("dX", s->dtype, got->dx, want->dx, n, s->hidden, why, size) &&
           tensor_equal("dw", DTYPE_F32, got->router_gradient, want->router_gradient, n, s->topk,
               why, size) &&
           (!c->gate || tensor_equal("dWgate", DTYPE_F32, got->gate_gradient, want->gate_gradient,
                            rows, s->hidden, why, size)) &&
           tensor_equal("dWup", DTYPE_F32, got->up_gradient, want->up_gradient, rows, s->hidden,
               why, size) &&
           tensor_equal("dWdown", DTYPE_F32, got->down_gradient, want->down_gradient, down_rows,
               s->ffn, why, size);
}

/* ---- a run ------------------------------------------------------------------------------------
 */

struct on_rank {
    const struct moe_case *c;
    const struct moe_case_run *run;
    struct moe_case_result *result;
};

static void *load(struct device *dev, const void *from, int64_t offset_bytes, int64_t bytes,
    enum live_set set, const char *label)
{
    if (!from)
        return NULL;
    void *block = dev_alloc(dev, bytes, set, label);
    dev_write(dev, block, (const char *)from + offset_bytes, bytes);
    return block;
}

static void load_all(struct moe *m, struct rank *rank, const struct on_rank *on)
{
    const struct moe_case *c = on->c;
    const struct moe_shape *s = &c->shape;
    int r = rank->index;
    int64_t token = 0, owned = moe_experts_per_rank(s), type_bytes = dtype_bytes(s->dtype);
    for (int i = 0; i < r; i++)
        token += c->tokens[i];
    int64_t row_bytes = s->hidden * type_bytes, slot_bytes = s->topk * 4;
    int64_t matrix_bytes = owned * s->hidden * s->ffn * type_bytes;
    *m = (struct moe){.shape = *s,
        .options = on->run->options,
        .rank = r,
        .with_backward = !on->run->forward_only,
        .dev = rank->dev,
        .comm = rank->comm,
        .idx = c->rank_idx[r],
        .run_order = on->run->run_order,
        .x = load(rank->dev, c->x, token * row_bytes, c->tokens[r] * row_bytes, LIVE_INPUT, "x"),
        .dy = load(rank->dev, c->dy, token * row_bytes, c->tokens[r] * row_bytes, LIVE_INPUT, "dy"),
        .router_weight = load(rank->dev, c->weight, token * slot_bytes, c->tokens[r] * slot_bytes,
            LIVE_INPUT, "router weights"),
        .gate = load(rank->dev, c->gate, r * matrix_bytes, matrix_bytes, LIVE_WEIGHTS, "gate"),
        .up = load(rank->dev, c->up, r * matrix_bytes, matrix_bytes, LIVE_WEIGHTS, "up"),
        .down = load(rank->dev, c->down, r * matrix_bytes, matrix_bytes, LIVE_WEIGHTS, "down")};
}

static void unload_all(struct moe *m)
{
    const void *blocks[] = {m->x, m->dy, m->router_weight, m->gate, m->up, m->down};
    for (int i = 0; i < 6; i++)
        dev_free(m->dev, (void *)(uintptr_t)blocks[i]);
}

static void collect(struct moe *m, const struct on_rank *on)
{
    const struct moe_case *c = on->c;
    const struct moe_shape *s = &c->shape;
    struct moe_case_result *out = on->result;
    int64_t token = 0, tokens = c->tokens[m->rank];
    for (int i = 0; i < m->rank; i++)
        token += c->tokens[i];
    int64_t row_bytes = s->hidden * dtype_bytes(s->dtype), matrices = moe_experts_per_rank(s);
    int64_t values = matrices * s->hidden * s->ffn;
    dev_read(m->dev, (char *)out->y + token * row_bytes, m->y, tokens * row_bytes);
    if (on->run->forward_only)
        return;
    dev_read(m->dev, (char *)out->dx + token * row_bytes, m->dx, tokens * row_bytes);
    dev_read(
        m->dev, out->router_gradient + token * s->topk, m->router_gradient, tokens * s->topk * 4);
    if (m->gate)
        dev_read(m->dev, out->gate_gradient + m->rank * values, m->gate_gradient, values * 4);
    dev_read(m->dev, out->up_gradient + m->rank * values, m->up_gradient, values * 4);
    dev_read(m->dev, out->down_gradient + m->rank * values, m->down_gradient, values * 4);
}

/* The peak of each live set over what was resident, against the closed forms. */
static void check_memory(const struct moe *m, const struct on_rank *on,
    const int64_t *resident_bytes, int64_t all_resident_bytes)
{
    const struct moe_impl *impl = on->run->impl;
    const struct mem_window *window = &dev_memory(m->dev)->window;
    bool backward = !on->run->forward_only;
    struct moe_peaks peaks[MOE_CASE_RANKS_MAX] = {{0}};
    if (impl->expected_bytes(&m->shape, &m->options, on->c->rank_idx, backward, peaks))
        dev_fail(m->dev, DEV_FAILED, "no host memory for the closed forms");
    for (int set = -1; set < LIVE_SET_COUNT; set++) {
        int64_t peak = set < 0 ? window->peak_bytes - all_resident_bytes
                               : window->set_peak_bytes[set] - resident_bytes[set];
        int64_t expected = set < 0 ? peaks[m->rank].all_bytes : peaks[m->rank].set_bytes[set];
        int64_t bound = impl->bound_bytes
                            ? impl->bound_bytes(&m->shape, &m->options, m->rank, set, backward)
                            : -1;
        const char *name = set < 0 ? "all" : mem_live_set_name((enum live_set)set);
        if (peak != expected)
            dev_fail(m->dev, DEV_FAILED, "%s: peak of %lld bytes, expected %lld", name,
                (long long)peak, (long long)expected);
        if (bound >= 0 && peak > bound)
            dev_fail(m->dev, DEV_FAILED, "%s: peak of %lld bytes, bound %lld", name,
                (long long)peak, (long long)bound);
    }
}

static void check_between(const struct moe *m, const struct on_rank *on, int64_t resident_bytes)
{
    int64_t y_bytes = m->shape.tokens[m->rank] * m->shape.hidden * dtype_bytes(m->shape.dtype);
    int64_t live = dev_memory(m->dev)->live_bytes, pinned = dev_host_memory(m->dev)->live_bytes;
    if (on->run->keeps_nothing && (live != resident_bytes + y_bytes || pinned || m->state))
        dev_fail(m->dev, DEV_FAILED, "%lld bytes survive forward beside Y, %lld pinned",
            (long long)(live - resident_bytes - y_bytes), (long long)pinned);
    if (on->run->kept_bytes && live - resident_bytes - y_bytes != on->run->kept_bytes[m->rank])
        dev_fail(m->dev, DEV_FAILED, "%lld bytes survive forward beside Y, expected %lld",
            (long long)(live - resident_bytes - y_bytes), (long long)on->run->kept_bytes[m->rank]);
}

/* Both passes, with what is live between them. */
static int passes(struct moe *m, const struct on_rank *on, int64_t resident_bytes)
{
    const struct moe_impl *impl = on->run->impl;
    if (impl->forward(m) != DEV_OK)
        return -1;
    check_between(m, on, resident_bytes);
    if (!on->run->forward_only && impl->backward(m) != DEV_OK)
        return -1;
    return dev_sync(m->dev) == DEV_OK ? 0 : -1;
}

static int one_round(struct moe *m, const struct on_rank *on)
{
    struct mem_probe *memory = dev_memory(m->dev);
    const struct moe_impl *impl = on->run->impl;
    int64_t resident_bytes[LIVE_SET_COUNT], all = memory->live_bytes;
    memcpy(resident_bytes, memory->set_bytes, sizeof resident_bytes);
    mem_window_reset(memory);
    int64_t allocations = memory->allocations;
    int status = passes(m, on, all);
    if (m->rank == 0)
        on->result->allocations = memory->allocations - allocations;
    if (status == 0) {
        if (!on->run->run_order) /* which takes scratch of its own */
            check_memory(m, on, resident_bytes, all);
        collect(m, on);
    }
    moe_release(m, impl);
    if (status == 0 && (memory->live_bytes != all || dev_host_memory(m->dev)->live_bytes))
        dev_fail(m->dev, DEV_FAILED, "%lld bytes left, %lld pinned",
            (long long)(memory->live_bytes - all), (long long)dev_host_memory(m->dev)->live_bytes);
    return dev_sync(m->dev) == DEV_OK ? status : -1;
}

static int body(struct rank *rank, void *context)
{
    const struct on_rank *on = context;
    const struct moe_case_run *run = on->run;
    struct moe m;
    load_all(&m, rank, on);
    if (dev_status(rank->dev) != DEV_OK)
        return -1;
    for (int round = 0; round < (run->rounds ? run->rounds : 1); round++) {
        if (one_round(&m, on) || comm_barrier(rank->comm))
            return -1;
        if (rank->index == 0 && run->each && !run->each(on->c, on->result, round, run->context)) {
            dev_fail(rank->dev, DEV_FAILED, "round %d gives other bits", round);
            return -1;
        }
        if (comm_barrier(rank->comm))
            return -1;
    }
    unload_all(&m);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

int moe_case_run(const struct moe_case *c, const struct moe_case_run *run,
    struct moe_case_result *result, char *why, int size)
{
    struct on_rank on = {c, run, result};
    struct ranks_failure failure;
    struct dev_pool *pool = dev_pool_create(2);
    struct ranks_config config = {.count = c->shape.ranks,
        .device = {.kind = DEV_CPU,
            .check_order = !run->no_order_check,
            .serial_streams = run->serial_streams,
            .device_limit_bytes = run->device_limit_bytes,
            .pool = pool},
        .timeout_s = 60};
    int status = pool && !result_init(c, result) ? 0 : -1;
    if (status)
        snprintf(why, (size_t)size, "no memory for the run");
    if (status == 0 && (status = ranks_run(&config, body, &on, &failure)))
        snprintf(why, (size_t)size, "rank %d: %s", failure.rank, failure.message);
    dev_pool_free(pool);
    return status;
}

bool moe_case_holds(const struct moe_case *c, const struct moe_case_run *run, char *why, int size)
{
    struct moe_case_result got = {0}, want = {0}, plain = {0};
    bool good = !moe_case_run(c, run, &got, why, size) &&
                !moe_case_reference(c, run->impl, &run->options, &want, why, size) &&
                !moe_case_reference(c, NULL, NULL, &plain, why, size) &&
                moe_case_equal(c, &got, &want, run->forward_only, why, size) &&
                tensor_equal("Y, default order", c->shape.dtype, got.y, plain.y, c->all_tokens,
                    c->shape.hidden, why, size);
    if (good && !run->forward_only)
        good = tensor_equal("dX, default order", c->shape.dtype, got.dx, plain.dx, c->all_tokens,
                   c->shape.hidden, why, size) &&
               tensor_equal("dw, default order", DTYPE_F32, got.router_gradient,
                   plain.router_gradient, c->all_tokens, c->shape.topk, why, size);
    moe_case_result_free(&got);
    moe_case_result_free(&want);
    moe_case_result_free(&plain);
    return good;
}
