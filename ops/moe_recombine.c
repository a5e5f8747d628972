/* A given order of a token's slots. Group g of every token is one chain, as a launch makes it whose
 * positions and weights are laid out in the order met; the groups' FP32 sums are then added from
 * the left, the first taken as it is. A token with a single group is rounded by the chain's own
 * launch, as it would be without an order. */
#include "ops/moe_recombine.h"
#include <stdlib.h>

/* This rank's tokens among those of the order. */
struct slots {
    const struct moe_order *order;
    int64_t first, tokens; /* the first of them; N */
    int topk, groups;      /* the most of a token */
};

static struct slots slots_of(const struct moe *m)
{
    struct slots s = {.order = m->run_order,
        .tokens = m->shape.tokens[m->rank],
        .topk = m->shape.topk,
        .groups = 1};
    for (int r = 0; r < m->rank; r++)
        s.first += m->shape.tokens[r];
    for (int64_t t = 0; t < s.tokens; t++) {
        int groups = 0;
        for (int i = 0; i < s.topk; i++)
            groups += s.order->combine_starts[(s.first + t) * s.topk + i];
        s.groups = groups > s.groups ? groups : s.groups;
    }
    return s;
}

/* ---- indices, on the host -------------------------------------------------------------------- */

/* slot [G, N, k]: which of the rank's N k slots group g of a token meets at each place, N k for
 * none; sum [N, G]: the row of the group's sum among [G, N], -1 where the token has no such group.
 */
static void fill(const struct slots *s, int32_t *slot, int32_t *sum)
{
    int64_t all = s->tokens * s->topk;
    for (int64_t i = 0; i < s->groups * all; i++)
        slot[i] = (int32_t)all;
    for (int64_t i = 0; i < s->groups * s->tokens; i++)
        sum[i] = -1;
    for (int64_t t = 0; t < s->tokens; t++) {
        int group = -1, at = 0;
        for (int i = 0; i < s->topk; i++) {
            int64_t place = (s->first + t) * s->topk + i;
            if (s->order->combine_starts[place]) {
                group++;
                at = 0;
                sum[t * s->groups + group] = (int32_t)(group * s->tokens + t);
            }
            if (group >= 0) /* what comes before is empty */
                slot[(group * s->tokens + t) * s->topk + at++] =
                    (int32_t)(t * s->topk + s->order->combine_slot[place]);
        }
    }
}

/* ---- on the device --------------------------------------------------------------------------- */

struct work {
    const struct moe_layer *layer;
    struct stream *stream;
    struct slots slots;
    int32_t *slot, *sum; /* as of fill */
};

static int64_t words(int64_t count)
{
    return count * (int64_t)sizeof(int32_t);
}

static bool upload(struct work *w)
{
    struct device *dev = w->layer->m->dev;
    const struct slots *s = &w->slots;
    int64_t slot_count = s->groups * s->tokens * s->topk, sum_count = s->groups * s->tokens;
    int32_t *host = malloc((size_t)words(slot_count + sum_count) + 1);
    if (!host) {
        dev_fail(dev, DEV_FAILED, "no host memory for an order of slots");
        return false;
    }
    fill(s, host, host + slot_count);
    w->slot = dev_alloc(dev, words(slot_count), LIVE_WORKSPACE, "slots in order");
    w->sum = dev_alloc(dev, words(sum_count), LIVE_WORKSPACE, "sums of groups");
    dev_write(dev, w->slot, host, words(slot_count));
    dev_write(dev, w->sum, host + slot_count, words(sum_count));
    free(host);
    return dev_status(dev) == DEV_OK;
}

/* A value of four bytes for each slot, and `none` (a byte, repeated) after them, laid out as group
 * `group` meets them: [N, k]. */
static void *lay_out(const struct work *w, int group, const void *values, int none)
{
    struct device *dev = w->layer->m->dev;
    int64_t all = w->slots.tokens * w->slots.topk;
    char *padded = dev_alloc(dev, words(all + 1), LIVE_WORKSPACE, "values of slots");
    void *ordered = dev_alloc(dev, words(all), LIVE_WORKSPACE, "values in order");
    dev_copy_d2d(w->stream, padded, values, words(all));
    dev_fill(w->stream, padded ? padded + words(all) : NULL, none, words(1));
    gather_rows(w->stream, &(struct gather_rows_args){.to = ordered,
                               .from = padded,
                               .index = w->slot ? w->slot + group * all : NULL,
                               .count = all,
                               .from_rows = all + 1,
                               .row_bytes = words(1)});
    dev_free(dev, padded);
    return ordered;
}

static void sum_group(
    const struct work *w, int group, const void *from, bool weighted, enum dtype to_type, void *to)
{
    const struct moe *m = w->layer->m;
    int32_t *position = lay_out(w, group, w->layer->index.position, 0xff); /* -1 */
    float *weight = weighted ? lay_out(w, group, m->router_weight, 0) : NULL;
    combine_rows(w->stream, &(struct combine_rows_args){.from = from,
                                .from_rows = moe_layer_sent(w->layer, 0),
                                .from_type = m->shape.dtype,
                                .position = position,
                                .weight = weight,
                                .count = w->slots.tokens,
                                .columns = m->shape.hidden,
                                .to_rows = w->slots.tokens,
                                .slots = m->shape.topk,
                                .to_type = to_type,
                                .to = to});
    dev_free(m->dev, weight);
    dev_free(m->dev, position);
}

static void sum_groups(const struct work *w, const void *from, bool weighted, void *to)
{
    const struct moe *m = w->layer->m;
    int64_t tokens = w->slots.tokens, rows = tokens * w->slots.groups;
    float *sums = dev_alloc(m->dev, rows * m->shape.hidden * (int64_t)sizeof *sums, LIVE_WORKSPACE,
        "sums of groups of slots");
    for (int group = 0; sums && group < w->slots.groups; group++)
        sum_group(w, group, from, weighted, DTYPE_F32, sums + group * tokens * m->shape.hidden);
    combine_rows(w->stream, &(struct combine_rows_args){.from = sums,
                                .from_rows = rows,
                                .from_type = DTYPE_F32,
                                .position = w->sum,
                                .count = tokens,
                                .columns = m->shape.hidden,
                                .to_rows = tokens,
                                .slots = w->slots.groups,
                                .take_first = true,
                                .to_type = m->shape.dtype,
                                .to = to});
    dev_free(m->dev, sums);
}

void moe_recombine(
    const struct moe_layer *layer, struct stream *stream, const void *from, bool weighted, void *to)
{
    struct work w = {.layer = layer, .stream = stream, .slots = slots_of(layer->m)};
    if (dev_status(layer->m->dev) == DEV_OK && upload(&w)) {
        if (w.slots.groups == 1)
            sum_group(&w, 0, from, weighted, layer->m->shape.dtype, to);
        else
            sum_groups(&w, from, weighted, to);
    }
    dev_free(layer->m->dev, w.slot);
    dev_free(layer->m->dev, w.sum);
}
