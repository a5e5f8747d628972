/* A chunk's rows there and back, one exchange each way, all on the main stream: for dispatchers
 * that overlap nothing. Rows on their way have room of their own (LIVE_STAGING) for as long as it
 * takes.
 */
#pragma once
#include <stdint.h>
#include "ops/moe_layer.h"

/* Rows of this rank's tokens, [N, H], to their experts. */
void moe_trip_out(struct moe_layer *layer, int64_t chunk, const void *tokens, void *received);

/* Outputs home, and their weighted sums into Y. `spent`, a block or NULL, is freed when they have
 * left. */
void moe_trip_home(struct moe_layer *layer, int64_t chunk, const void *rows, void *spent);

/* A value per route of a chunk: router weights out, their gradients home; as sent, as received.
 * LIVE_WORKSPACE. */
struct moe_route_values {
    float *sent, *weight;
    float *home, *gradient;
};
void moe_route_values_alloc(
    const struct moe_layer *layer, int64_t chunk, struct moe_route_values *values);
void moe_route_values_free(const struct moe_layer *layer, struct moe_route_values *values);

/* Backward's: dY rows and router weights to the experts; dX rows and router gradients home, summed
 * into dX and dw, the block of rows freed when they have left. */
void moe_trip_gradients_out(
    struct moe_layer *layer, int64_t chunk, const struct moe_route_values *values, void *received);
void moe_trip_gradients_home(
    struct moe_layer *layer, int64_t chunk, const struct moe_route_values *values, void *rows);
