/* What a shape alone says of a dispatcher, before any routing is known: its bound, and which side
 * of a ring travels. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "bench/harness/result.h"
#include "ops/moe.h"

/* {"moves": "experts"|"tokens", "volume": "printed"|"true", "hop_bytes": {"printed": {...}, "true":
 * {...}}}: the choice that relay's options lead to, and what either rule counts. NULL when memory
 * is short. */
json_t *moe_relay_json(const struct moe_shape *shape, const struct moe_options *options);

/* "experts" or "tokens". */
const char *moe_relay_moves(const struct moe_shape *shape, const struct moe_options *options);

/* The plan of a case that does not run: resident bytes and bound of the fullest rank, chunks, and
 * relay's choice. The case is skipped with a line that says so. */
void moe_plan_describe(const struct moe_impl *impl, const struct moe_shape *shape,
    const struct moe_options *options, bool backward, struct case_result *result);
