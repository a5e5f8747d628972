/* RelayMoE's choice for the record: both rules' bytes, whichever of them decided. */
#include "bench/harness/moe_relay.h"
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
