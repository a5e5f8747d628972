/* Sizes, and the ledger: the accounting of probe/memory.h with no memory behind it. */
#include "ops/stack_memory.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t stack_row_bytes(const struct stack_shape *shape, int rank)
{
    return shape->tokens[rank] * shape->hidden * dtype_bytes(shape->dtype);
}

int64_t stack_wide_bytes(const struct stack_shape *shape, int rank)
{
    return shape->tokens[rank] * shape->ffn * dtype_bytes(shape->dtype);
}

int64_t stack_scale_bytes(const struct stack_shape *shape, int rank)
{
    return shape->tokens[rank] * (int64_t)sizeof(float);
}

int64_t stack_working_bytes(const struct stack_shape *shape, int rank, bool backward)
{
    int64_t row = stack_row_bytes(shape, rank), wide = stack_wide_bytes(shape, rank);
    int64_t normed = row + stack_scale_bytes(shape, rank);
    return backward ? normed + 3 * wide + 2 * row : most(normed + 2 * wide, wide + row);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

/* Enters an allocation, or with bytes < 0 a free. */
static void enter(struct stack_ledger *ledger, int64_t bytes, enum live_set set)
{
    if (bytes >= 0)
        mem_add(&ledger->device, bytes, set, "replay");
    else
        mem_sub(&ledger->device, -bytes, set);
}

struct stack_ledger stack_ledger_open(const struct stack_shape *shape, int rank, bool backward)
{
    struct stack_ledger ledger = {.shape = shape, .rank = rank, .backward = backward};
    mem_init(&ledger.device, 0);
    mem_init(&ledger.host, 0);
    stack_ledger_boundary(&ledger, 1);
    return ledger;
}

void stack_ledger_boundary(struct stack_ledger *ledger, int64_t count)
{
    enter(ledger, count * stack_row_bytes(ledger->shape, ledger->rank), LIVE_BOUNDARY);
}

void stack_ledger_hidden(struct stack_ledger *ledger, bool keep)
{
    int64_t row = stack_row_bytes(ledger->shape, ledger->rank);
    int64_t scale = stack_scale_bytes(ledger->shape, ledger->rank);
    int64_t wide = stack_wide_bytes(ledger->shape, ledger->rank);
    enter(ledger, row, LIVE_WORKSPACE);
    enter(ledger, scale, LIVE_WORKSPACE);
    enter(ledger, wide, LIVE_EXPERT);
    enter(ledger, wide, LIVE_EXPERT);
    if (keep) {
        enter(ledger, wide, LIVE_EXPERT);
        return;
    }
    enter(ledger, -row, LIVE_WORKSPACE);
    enter(ledger, -scale, LIVE_WORKSPACE);
    enter(ledger, -wide, LIVE_EXPERT);
}

void stack_ledger_output(struct stack_ledger *ledger, int64_t layer)
{
    bool last = layer + 1 == ledger->shape->layers;
    enter(ledger, stack_row_bytes(ledger->shape, ledger->rank), last ? LIVE_OUTPUT : LIVE_BOUNDARY);
}

void stack_ledger_kept_free(struct stack_ledger *ledger, bool keep)
{
    int64_t wide = stack_wide_bytes(ledger->shape, ledger->rank);
    enter(ledger, -wide, LIVE_EXPERT);
    if (!keep)
        return;
    enter(ledger, -2 * wide, LIVE_EXPERT);
    enter(ledger, -stack_row_bytes(ledger->shape, ledger->rank), LIVE_WORKSPACE);
    enter(ledger, -stack_scale_bytes(ledger->shape, ledger->rank), LIVE_WORKSPACE);
}

void stack_ledger_backward_begin(struct stack_ledger *ledger)
{
    enter(ledger, stack_row_bytes(ledger->shape, ledger->rank), LIVE_OUTPUT);
}
