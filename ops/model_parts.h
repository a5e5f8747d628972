/* Parameters of the composed model: who holds what, gradients to their slices, weights back. */
#pragma once
#include "ops/model.h"

/* Lists the parts; no device memory. 0, or -1 when memory is short. */
int model_parts_init(struct model *m);
/* The same of a rank that is not there: shape, options and rank are set, its groups follow. */
int model_parts_plan(struct model *m);
void model_parts_free(struct model *m);

/* Elements of the weights that a rank has resident. */
int64_t model_resident_elements(const struct model *m);

/* Allocates weights, optimizer and gradients, and seeds them. */
enum dev_status model_parts_open(struct model *m);
void model_parts_close(struct model *m);

/* The part of a layer (or of none, -1). */
const struct model_part *model_part_of(
    const struct model *m, enum model_tensor tensor, int64_t layer);
/* Its resident weights. */
const uint16_t *model_weights(const struct model *m, enum model_tensor tensor, int64_t layer);

/* `gradient` [count], FP32 on the device, is whole on the main stream, and is taken over: it is
 * summed over the part's holders and this rank's slice sent to the host beside what main does next.
 * One gradient is on its way at a time:
 *
 *     main        dWq | ... dWk | waits, frees dWq | ... dWv | waits, frees dWk | ...
 *     gradients       | Wq: sum, out               | Wk: sum, out               | ...
 *
 * so a rank need not wait for its peers in the middle of a block. */
void model_send_gradient(struct model *m, enum model_tensor tensor, int64_t layer, float *gradient);

/* Main waits for the one on its way, and it is freed. */
void model_settle_gradient(struct model *m);

/* After the optimizer: every holder has the new weights. */
void model_refresh(struct model *m);
