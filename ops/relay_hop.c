/* The work of a meeting. Index arrays are made on the host while the device is two pieces behind,
 * and travel on a stream of their own. In forward the experts' outputs take the place of x, which
 * nothing reads any more; in backward de takes the place of e once dw is formed. */
#include "ops/relay_hop.h"
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "ops/moe_memory.h"

int relay_hop_slots(int64_t pieces)
{
    return pieces > 1 ? 2 : 1;
}

void relay_hop_open(
    struct relay_hop *hop, struct moe *m, const struct relay_plan *plan, bool backward)
{
    struct device *dev = m->dev;
    *hop = (struct relay_hop){.m = m,
        .plan = plan,
        .backward = backward,
        .main = dev_main_stream(dev),
        .copy = m->options.overlap_off ? dev_main_stream(dev) : dev_stream(dev, "indices"),
        .slots = relay_hop_slots(plan->piece_count)};
    for (int i = 0; i < hop->slots; i++) {
        int64_t bytes = plan->most_block_bytes;
        hop->slot[i].block = dev_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
        hop->slot[i].pinned = dev_host_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
    }
    hop->rows = dev_alloc(
        dev, moe_rows_bytes(&m->shape, plan->most_rows), LIVE_DISPATCH, "a hop's matching rows");
    moe_hidden_alloc(m, plan->most_rows, backward, &hop->hidden);
    if (backward)
        hop->dw = dev_alloc(dev, plan->most_rows * 4, LIVE_WORKSPACE, "router gradients by row");
    if (m->options.grouped_off) {
        hop->each = malloc((size_t)(plan->most_groups + 1) * sizeof *hop->each);
        if (!hop->each)
            dev_fail(dev, DEV_FAILED, "no host memory for a hop's groups");
    }
    dev_wait_stream(hop->copy, hop->main);
}

void relay_hop_close(struct relay_hop *hop)
{
    struct device *dev = hop->m->dev;
    dev_wait_stream(hop->main, hop->copy);
    for (int i = 0; i < hop->slots; i++) {
        dev_free(dev, hop->slot[i].block);
        dev_sync_event(hop->slot[i].uploaded);
        dev_host_free(dev, hop->slot[i].pinned);
    }
    dev_free(dev, hop->rows);
    moe_hidden_free(hop->m, &hop->hidden);
    dev_free(dev, hop->dw);
    free(hop->each);
}

void relay_hop_add_bytes(struct moe_phase *phase, const struct moe_shape *shape, int slots,
    int64_t rows, int64_t block_bytes, bool backward)
{
    phase->set_bytes[LIVE_WORKSPACE] += slots * block_bytes + (backward ? rows * 4 : 0);
    phase->set_bytes[LIVE_DISPATCH] += moe_rows_bytes(shape, rows);
    phase->set_bytes[LIVE_EXPERT] += moe_hidden_bytes(shape, rows, backward);
}

float *relay_sums_alloc(struct moe *m, void *output)
{
    int64_t bytes = m->shape.tokens[m->rank] * m->shape.hidden * (int64_t)sizeof(float);
    float *sums = output;
    if (m->shape.dtype != DTYPE_F32)
        sums = dev_alloc(m->dev, bytes, LIVE_COMBINE, "sums over slots");
    dev_fill(dev_main_stream(m->dev), sums, 0, bytes);
    return sums;
}

void relay_sums_store(struct moe *m, float *sums, void *output)
{
    if (m->shape.dtype == DTYPE_F32)
        return;
    round_bf16(dev_main_stream(m->dev), output, sums, m->shape.tokens[m->rank] * m->shape.hidden);
    dev_free(m->dev, sums);
}

/* ---- index arrays ---------------------------------------------------------------------------- */

/* With --grouped off the device's groups begin at row 0, since every launch is given its own. */
static void part_groups(struct relay_hop *hop, struct expert_group *groups, int64_t count)
{
    for (int64_t g = 0; g < count; g++) {
        hop->each[g] = groups[g];
        groups[g].first = 0;
    }
}

static struct relay_slot *upload(
    struct relay_hop *hop, const struct relay_meeting *meeting, const struct relay_piece *piece)
{
    struct relay_slot *slot = &hop->slot[hop->uploads++ % hop->slots];
    dev_sync_event(slot->uploaded);
    if (dev_status(hop->m->dev) == DEV_OK) {
        relay_block_fill(hop->plan, meeting, piece, slot->pinned);
        if (hop->each)
            part_groups(hop, slot->pinned, piece->groups);
    }
    dev_wait(hop->copy, slot->used);
    dev_copy_h2d(hop->copy, slot->block, slot->pinned,
        relay_block_bytes(piece->groups, piece->rows, piece->tokens, hop->plan->topk));
    slot->uploaded = dev_record(hop->copy);
    dev_wait(hop->main, slot->uploaded);
    return slot;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A piece with all that it meets. */
struct step {
    struct relay_hop *hop;
    const struct relay_piece *piece;
    const struct relay_batch *batch;
    struct relay_block index; /* on the device */
    struct moe_work work;
    int64_t batch_tokens;
};

static void gather_x(const struct step *s)
{
    const struct moe_shape *shape = s->work.shape;
    gather_rows(s->hop->main, &(struct gather_rows_args){.to = s->hop->rows,
                                  .from = s->batch->x,
                                  .index = s->index.token,
                                  .count = s->piece->rows,
                                  .from_rows = s->batch_tokens,
                                  .row_bytes = moe_rows_bytes(shape, 1)});
}

static void add_to_sums(const struct step *s, const void *rows, bool weighted)
{
    const struct moe_shape *shape = s->work.shape;
    combine_rows(s->hop->main, &(struct combine_rows_args){.from = rows,
                                   .from_rows = s->piece->rows,
                                   .from_type = shape->dtype,
                                   .position = s->index.position,
                                   .weight = weighted ? s->batch->weight : NULL,
                                   .token = s->index.summed,
                                   .count = s->piece->tokens,
                                   .columns = shape->hidden,
                                   .to_rows = s->batch_tokens,
                                   .slots = shape->topk,
                                   .continued = true,
                                   .to_type = DTYPE_F32,
                                   .to = s->batch->sums});
}

/* dw by row; then, e being read, de in its place. */
static void route_gradients(const struct step *s)
{
    const struct moe_shape *shape = s->work.shape;
    struct route_backward_args args = {.count = s->piece->rows,
        .columns = shape->hidden,
        .type = shape->dtype,
        .dy = s->batch->dy,
        .dy_rows = s->batch_tokens,
        .dy_row = s->index.token,
        .e = s->hop->hidden.out,
        .dw = s->hop->dw};
    route_backward(s->hop->main, &args);
    args.route = s->index.route;
    args.routes = s->batch_tokens * shape->topk;
    args.weight = s->batch->weight;
    args.e = NULL;
    args.dw = NULL;
    args.de = s->hop->hidden.out;
    route_backward(s->hop->main, &args);
}

static void forward_piece(const struct step *s)
{
    struct relay_hop *hop = s->hop;
    if (s->piece->rows == 0)
        return;
    hop->hidden.out = hop->rows;
    gather_x(s);
    moe_work_activate(&s->work, hop->rows, &hop->hidden);
    moe_work_output(&s->work, &hop->hidden);
    dev_wait(hop->main, s->batch->sums_are_there);
    add_to_sums(s, hop->rows, true);
}

static void backward_piece(const struct step *s)
{
    struct relay_hop *hop = s->hop;
    void *de = hop->hidden.out;
    if (s->piece->rows) {
        gather_x(s);
        moe_work_activate(&s->work, hop->rows, &hop->hidden);
        moe_work_output(&s->work, &hop->hidden);
        route_gradients(s);
    }
    moe_work_backward(&s->work, hop->rows, &hop->hidden, de);
    if (s->piece->rows == 0)
        return;
    dev_wait(hop->main, s->batch->sums_are_there);
    add_to_sums(s, de, false);
    scatter_rows(hop->main, &(struct scatter_rows_args){.to = s->batch->router_gradient,
                                .from = hop->dw,
                                .index = s->index.route,
                                .count = s->piece->rows,
                                .to_rows = s->batch_tokens * s->work.shape->topk,
                                .row_bytes = sizeof(float)});
}

void relay_meet(struct relay_hop *hop, int number, const struct relay_batch *batch,
    const struct relay_experts *experts)
{
    const struct relay_meeting *meeting = &hop->plan->meetings[number];
    for (int64_t p = 0; p < meeting->pieces; p++) {
        const struct relay_piece *piece = &hop->plan->pieces[meeting->first_piece + p];
        if (piece->rows == 0 && !hop->backward)
            continue;
        struct relay_slot *slot = upload(hop, meeting, piece);
        struct step s = {.hop = hop,
            .piece = piece,
            .batch = batch,
            .index = relay_block_in(slot->block, piece),
            .batch_tokens = meeting->tokens};
        s.work = (struct moe_work){.shape = &hop->m->shape,
            .stream = hop->main,
            .groups = s.index.groups,
            .group_count = piece->groups,
            .rows = piece->rows,
            .owned = meeting->experts,
            .each = hop->each,
            .gate = experts->gate,
            .up = experts->up,
            .down = experts->down,
            .gate_gradient = experts->gate_gradient,
            .up_gradient = experts->up_gradient,
            .down_gradient = experts->down_gradient};
        (hop->backward ? backward_piece : forward_piece)(&s);
        slot->used = dev_record(hop->main);
    }
    dev_wait(hop->main, batch->sums_are_there);
}
