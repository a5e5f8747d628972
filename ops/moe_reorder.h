/* Weight gradients summed in an order that is given, for rows that lie in the default one: so that
 * a plain dispatcher can be run in the declared order of another, and compared bit for bit
 * (`run_order` of struct moe). A tool of comparison, not of speed: rows are gathered once more. */
#pragma once
#include "kernels/moe.h"
#include "ops/moe.h"

struct moe_reorder {
    struct device *dev;
    int32_t *index; /* device, [rows]: the row met at each place */
    int64_t rows;
    /* Segment after segment of all owned experts: launch i has groups [first[i], first[i + 1]). */
    struct expert_group *groups; /* device */
    int64_t *first;              /* host, [launches + 1]; owned */
    int64_t launches;
};

/* Of the rows that a rank receives of m->run_order's routes when they lie by expert, then by route
 * number. The device fails when memory is short. Blocks are LIVE_WORKSPACE. */
void moe_reorder_open(struct moe_reorder *reorder, const struct moe *m);
void moe_reorder_close(struct moe_reorder *reorder);

/* expert_gradient over the reordered rows; args' groups are replaced. */
void moe_reorder_gradient(const struct moe_reorder *reorder, struct stream *stream,
    const struct expert_gradient_args *args);
