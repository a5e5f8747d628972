/* The memory of the checkpoint-boundary problem from shapes alone: its tensors' sizes, and a ledger
 * in which an implementation enters its allocations and frees in their order. The ledger's peaks,
 * all sets together and set by set, are what a measured step must equal to the byte. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"
#include "probe/memory.h"

struct stack_shape {
    int ranks;
    const int64_t *tokens; /* [ranks]: N_r */
    int64_t layers, hidden, ffn;
    enum dtype dtype;
};

/* Bytes of [N_r, H] and of [N_r, F] in the problem's type, of [N_r] in FP32. */
int64_t stack_row_bytes(const struct stack_shape *shape, int rank);
int64_t stack_wide_bytes(const struct stack_shape *shape, int rank);
int64_t stack_scale_bytes(const struct stack_shape *shape, int rank);

struct stack_ledger {
    const struct stack_shape *shape;
    int rank;
    bool backward; /* the step has a backward pass */
    struct mem_probe device, host;
};

/* Empty, but for the input that the caller hands over as boundary 0. */
struct stack_ledger stack_ledger_open(const struct stack_shape *shape, int rank, bool backward);

void stack_ledger_boundary(struct stack_ledger *ledger, int64_t count); /* < 0: freed */

/* One entry for each call of ops/stack_layer.h. */
void stack_ledger_hidden(struct stack_ledger *ledger, bool keep);
void stack_ledger_output(struct stack_ledger *ledger, int64_t layer);
void stack_ledger_kept_free(struct stack_ledger *ledger, bool keep);
void stack_ledger_backward_begin(struct stack_ledger *ledger);

/* What one layer's backward holds beside boundaries, with the outputs of the step: n, r, g, u, a,
 * dx and y. What one layer's forward holds: n, r, g, u, or g with y. */
int64_t stack_working_bytes(const struct stack_shape *shape, int rank, bool backward);
