/* RelayMoE's choice between its two modes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "ops/moe.h"

/* Bytes that one hop moves, at the largest rank's tokens. `printed` is the paper's Table 2: the
 * partition's weights against the tokens and their metadata, both doubled in backward. `true` is
 * what travels: FP32 gradients behind the weights, FP32 sums behind the tokens. Metadata is an
 * expert id and a router weight a slot, 8k bytes a token. */
struct relay_volume {
    int64_t experts_forward_bytes, experts_backward_bytes;
    int64_t tokens_forward_bytes, tokens_backward_bytes;
};
struct relay_volume relay_volume(const struct moe_shape *shape, enum moe_volume volume);

/* Whether tokens are the smaller side, both passes together; experts where they are equal. */
bool relay_moves_tokens(const struct relay_volume *volume);
