/* relay: whichever of relay-expert and relay-token moves less, chosen once from the shape.
 *
 * The paper's rule compares a partition's weights with a batch's tokens and metadata; both sides
 * double in backward, so it is one comparison. What really travels is more on either side: FP32
 * gradients behind the weights, FP32 sums behind the tokens, dY beside them. The two rules disagree
 * on shapes that the paper ran (bench/tables/relay_table_02.sh); --volume says which one decides,
 * and both are recorded.
 *
 * Bound, bytes and order: those of the mode chosen, which depends on the shape alone, so that all
 * ranks choose alike. */
#include "ops/relay.h"
#include "ops/moe_lend.h"
#include "ops/relay_memory.h"

/* An expert id and a router weight for each slot. */
static int64_t metadata_bytes(const struct moe_shape *shape)
{
    return shape->topk * (int64_t)(sizeof(int32_t) + sizeof(float));
}

struct relay_volume relay_volume(const struct moe_shape *shape, enum moe_volume volume)
{
    int64_t values = moe_experts_per_rank(shape) * moe_expert_values(shape);
    int64_t tokens = relay_most_tokens(shape), type_bytes = dtype_bytes(shape->dtype);
    int64_t row_bytes = type_bytes * shape->hidden, sum_bytes = 4 * shape->hidden;
    struct relay_volume v = {.experts_forward_bytes = values * type_bytes,
        .tokens_forward_bytes = tokens * (row_bytes + metadata_bytes(shape))};
    if (volume == MOE_VOLUME_PRINTED) {
        v.experts_backward_bytes = 2 * v.experts_forward_bytes;
        v.tokens_backward_bytes = 2 * v.tokens_forward_bytes;
        return v;
    }
    v.tokens_forward_bytes += tokens * sum_bytes;
    v.experts_backward_bytes = values * (type_bytes + 4);
    v.tokens_backward_bytes =
        tokens * (2 * row_bytes + sum_bytes + 4 * shape->topk + metadata_bytes(shape));
    return v;
}

bool relay_moves_tokens(const struct relay_volume *v)
{
    return v->tokens_forward_bytes + v->tokens_backward_bytes <
           v->experts_forward_bytes + v->experts_backward_bytes;
}

static const struct moe_impl *chosen(
    const struct moe_shape *shape, const struct moe_options *options)
{
    struct relay_volume volume = relay_volume(shape, options->volume);
    return relay_moves_tokens(&volume) ? &moe_relay_token : &moe_relay_expert;
}

static enum dev_status forward(struct moe *m)
{
    return chosen(&m->shape, &m->options)->forward(m);
}

static enum dev_status backward(struct moe *m)
{
    return chosen(&m->shape, &m->options)->backward(m);
}

static int64_t bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool with_backward)
{
    return chosen(shape, options)->bound_bytes(shape, options, rank, live_set, with_backward);
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    return chosen(shape, options)->expected_bytes(shape, options, idx, with_backward, out);
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    return chosen(shape, options)->order(shape, options, idx, out);
}

const struct moe_impl moe_relay = {
    .name = "relay",
    .summary = "relay-expert or relay-token, whichever moves less",
    .options = " hop-rows overlap grouped volume ",
    .backward_alone = true,
    .forward = forward,
    .backward = backward,
    .bound_bytes = bound_bytes,
    .expected_bytes = expected_bytes,
    .order = order,
};
