/* Closed forms of a shape for the record. Of RelayMoE's choice both rules' bytes are told,
 * whichever of them decided. */
#include "bench/harness/moe_plan.h"
#include <stdio.h>
#include <string.h>
#include "bench/harness/units.h"
#include "ops/moe_lend.h"
#include "ops/moe_route.h"
#include "ops/relay.h"

static const char *moves(const struct relay_volume *volume)
{
    return relay_moves_tokens(volume) ? "tokens" : "experts";
}

const char *moe_relay_moves(const struct moe_shape *shape, const struct moe_options *options)
{
    struct relay_volume volume = relay_volume(shape, options->volume);
    return moves(&volume);
}

static json_t *volume_json(const struct moe_shape *shape, enum moe_volume rule)
{
    struct relay_volume v = relay_volume(shape, rule);
    return json_pack("{s:s, s:{s:I, s:I}, s:{s:I, s:I}}", "moves", moves(&v), "experts", "forward",
        (json_int_t)v.experts_forward_bytes, "backward", (json_int_t)v.experts_backward_bytes,
        "tokens", "forward", (json_int_t)v.tokens_forward_bytes, "backward",
        (json_int_t)v.tokens_backward_bytes);
}

json_t *moe_relay_json(const struct moe_shape *shape, const struct moe_options *options)
{
    return json_pack("{s:s, s:s, s:{s:o, s:o}}", "moves", moe_relay_moves(shape, options), "volume",
        options->volume == MOE_VOLUME_TRUE ? "true" : "printed", "hop_bytes", "printed",
        volume_json(shape, MOE_VOLUME_PRINTED), "true", volume_json(shape, MOE_VOLUME_TRUE));
}

/* Tokens, their gradient in backward, router weights and the rank's experts. */
static int64_t resident_bytes(const struct moe_shape *shape, int rank, bool backward)
{
    int64_t rows = shape->tokens[rank] * shape->hidden * dtype_bytes(shape->dtype);
    int64_t experts = moe_experts_per_rank(shape) * moe_expert_values(shape);
    return rows * (backward ? 2 : 1) + shape->tokens[rank] * shape->topk * 4 +
           experts * dtype_bytes(shape->dtype);
}

/* The fullest rank's; -1 = unbounded. */
static int64_t most_bound(const struct moe_impl *impl, const struct moe_shape *shape,
    const struct moe_options *options, bool backward)
{
    int64_t most = -1;
    for (int r = 0; r < shape->ranks; r++) {
        int64_t bytes = impl->bound_bytes ? impl->bound_bytes(shape, options, r, -1, backward) : -1;
        most = bytes > most ? bytes : most;
    }
    return most;
}

void moe_plan_describe(const struct moe_impl *impl, const struct moe_shape *shape,
    const struct moe_options *options, bool backward, struct case_result *result)
{
    int64_t bound = most_bound(impl, shape, options, backward), resident = 0;
    char bound_text[32] = "none", resident_text[32], chosen[64] = "";
    for (int r = 0; r < shape->ranks; r++) {
        int64_t bytes = resident_bytes(shape, r, backward);
        resident = bytes > resident ? bytes : resident;
    }
    result->plan = json_pack("{s:I}", "resident_bytes", (json_int_t)resident);
    units_bytes(resident, resident_text, sizeof resident_text);
    if (bound >= 0) {
        json_object_set_new(result->plan, "bound_bytes", json_integer(bound));
        units_bytes(bound, bound_text, sizeof bound_text);
    }
    if (strstr(impl->options, " chunk-count "))
        json_object_set_new(result->plan, "chunks", json_integer(moe_chunk_count(shape, options)));
    if (impl == &moe_relay) {
        json_object_set_new(result->plan, "relay", moe_relay_json(shape, options));
        snprintf(chosen, sizeof chosen, ", %s travel", moe_relay_moves(shape, options));
    }
    case_result_skip(result, "closed form, nothing ran: resident %s, bound %s%s", resident_text,
        bound_text, chosen);
}
