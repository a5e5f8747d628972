/* The experts' part of a dispatcher: what happens to rows that lie by matrix, such as a chunk's
 * received ones. All on one stream. */
#pragma once
#include <stdint.h>
#include "ops/moe_layer.h"
#include "ops/moe_lend.h"

/* Intermediates of `rows` routes: gate, up and activation [rows, F], outputs [rows, H]. */
struct moe_hidden {
    void *gate, *up; /* gate NULL for ReLU */
    void *act;       /* may be gate's or, for ReLU, up's array where backward does not follow */
    void *out;       /* e; wanted by backward alone as a block of its own */
};

/* What a recomputing backward needs beside x, dy and dx: gate, up, act and out; forward: gate and
 * up, the activation over one of them (out is where the caller wants it). LIVE_EXPERT. */
void moe_hidden_alloc(const struct moe *m, int64_t rows, bool backward, struct moe_hidden *hidden);
void moe_hidden_free(const struct moe *m, struct moe_hidden *hidden);
int64_t moe_hidden_bytes(const struct moe_shape *shape, int64_t rows, bool backward);

/* Rows that lie by matrix, the matrices that they meet and those matrices' gradients. */
struct moe_work {
    const struct moe_shape *shape;
    struct stream *stream;
    const struct expert_group *groups; /* on the device */
    int64_t group_count, rows, owned;
    /* NULL: one launch for all groups. Else the groups on the host: a launch for each, and those on
     * the device all begin at row 0. */
    const struct expert_group *each;
    const void *gate, *up, *down; /* [owned] matrices; gate NULL for ReLU */
    float *gate_gradient, *up_gradient, *down_gradient;
    const struct moe_lent *lent;       /* further matrices, numbered from `owned` on */
    const struct moe_reorder *reorder; /* of the gradients; NULL = rows as they lie */
};

/* x -> act; act -> out. */
void moe_work_activate(const struct moe_work *work, const void *x, const struct moe_hidden *hidden);
void moe_work_output(const struct moe_work *work, const struct moe_hidden *hidden);

/* From x, what forward left in `hidden` (act on its own) and the rows' de the weight gradients, and
 * dx in de's place: act is lost, gate and up become their gradients. Every group's gradient begins
 * or goes on as the group says. */
void moe_work_backward(
    const struct moe_work *work, const void *x, const struct moe_hidden *hidden, void *de);

/* Its three steps: Wdown's gradient; dg, du and dx; the gradients of Wgate and Wup. */
void moe_work_down_gradient(
    const struct moe_work *work, const struct moe_hidden *hidden, const void *de);
void moe_work_input_gradient(
    const struct moe_work *work, const struct moe_hidden *hidden, void *de);
void moe_work_up_gradients(
    const struct moe_work *work, const void *x, const struct moe_hidden *hidden);

/* The chunk's rows x -> out: gate, up, activation, down; its two halves: x -> act, act -> out. */
void moe_experts_forward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden);
void moe_experts_activate(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden);
void moe_experts_output(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const struct moe_hidden *hidden);

/* From x, what forward left in `hidden` (act on its own), dy and the rows' router weights: dw, the
 * weight gradients, and dx, which takes dy's place. act is lost, gate and up become their
 * gradients. Gradients of matrices begin in chunk 0 and are continued after it. */
void moe_experts_backward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden, void *dy,
    const float *weight, float *dw);

/* The outputs of a pass, LIVE_OUTPUT and LIVE_GRADIENTS; gradients are not filled, but dw is zero.
 */
void moe_alloc_forward(struct moe *m);
void moe_alloc_backward(struct moe *m);
int64_t moe_rows_bytes(const struct moe_shape *shape, int64_t rows); /* rows of H */
