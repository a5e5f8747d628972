/* What a record says of RelayMoE's choice. */
#pragma once
#include <jansson.h>
#include "ops/moe.h"

/* {"moves": "experts"|"tokens", "volume": "printed"|"true", "hop_bytes": {"printed": {...}, "true":
 * {...}}}: the choice that the options lead to, and what either rule counts. NULL when memory is
 * short. */
json_t *moe_relay_json(const struct moe_shape *shape, const struct moe_options *options);

/* "experts" or "tokens". */
const char *moe_relay_moves(const struct moe_shape *shape, const struct moe_options *options);
