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

/* `gradient` [count], FP32 on the device, is whole on the main stream: sums it over the part's
 * holders and sends this rank's slice to the host. The block stays the caller's. */
void model_send_gradient(
    struct model *m, enum model_tensor tensor, int64_t layer, const float *gradient);

/* After the optimizer: every holder has the new weights. */
void model_refresh(struct model *m);
