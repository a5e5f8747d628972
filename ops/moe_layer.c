/* The steps of a dispatcher on one rank. Rows land directly where the experts' products want them:
 * an exchange has a part for every place and source, so nothing is moved again after its arrival.
 */
#include "ops/moe_layer.h"
#include <stdlib.h>
#include <string.h>

/* ---- index arrays on the device ---------------------------------------------------------------
 * Groups first: they need the larger alignment. */

int64_t moe_layer_bytes(const struct moe_layout *layout, int rank)
{
    int64_t routes = moe_layout_routes(layout, rank), tokens = layout->tokens[rank];
    return moe_layout_group_total(layout, rank) * (int64_t)sizeof(struct expert_group) +
           (2 * routes + tokens + tokens * layout->topk) * (int64_t)sizeof(int32_t);
}

/* The arrays in a block of moe_layer_bytes. */
static struct moe_index index_in(const struct moe_layer *layer, void *block)
{
    const struct moe_layout *layout = &layer->layout;
    int rank = layer->m->rank;
    int64_t routes = moe_layout_routes(layout, rank);
    struct moe_index index;
    index.token = (int32_t *)((struct expert_group *)block + moe_layout_group_total(layout, rank));
    index.route = index.token + routes;
    index.chunk_token = index.route + routes;
    index.position = index.chunk_token + layout->tokens[rank];
    return index;
}

static void find_firsts(struct moe_layer *layer)
{
    const struct moe_layout *layout = &layer->layout;
    int rank = layer->m->rank;
    layer->row_first[0] = layer->token_first[0] = layer->group_first[0] = 0;
    for (int64_t c = 0; c < layout->partition.chunks; c++) {
        layer->row_first[c + 1] = layer->row_first[c] + moe_layout_sent(layout, rank, c);
        layer->token_first[c + 1] =
            layer->token_first[c] + moe_chunk_tokens(&layout->partition, layout->tokens[rank], c);
        layer->group_first[c + 1] = layer->group_first[c] + moe_layout_group_count(layout, rank, c);
    }
}

/* Nobody looks at what a simulated device would be given. */
static int fill(struct moe_layer *layer)
{
    const struct moe_layout *layout = &layer->layout;
    if (dev_is_simulated(layer->m->dev))
        return 0;
    struct expert_group *groups = layer->pinned;
    struct moe_index index = index_in(layer, layer->pinned);
    for (int64_t c = 0; c < layout->partition.chunks; c++)
        moe_layout_groups(layout, layer->m->rank, c, groups + layer->group_first[c]);
    return moe_layout_index(layout, layer->m->rank, layer->m->idx, &index);
}

static void upload(struct moe_layer *layer)
{
    struct device *dev = layer->m->dev;
    struct stream *main = dev_main_stream(dev);
    int64_t bytes = moe_layer_bytes(&layer->layout, layer->m->rank);
    size_t count = (size_t)layer->layout.partition.chunks + 1;
    layer->row_first = malloc(count * sizeof *layer->row_first);
    layer->token_first = malloc(count * sizeof *layer->token_first);
    layer->group_first = malloc(count * sizeof *layer->group_first);
    layer->block = dev_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
    layer->pinned = dev_host_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
    if (dev_status(dev) != DEV_OK)
        return;
    bool room = layer->row_first && layer->token_first && layer->group_first;
    if (room)
        find_firsts(layer);
    if (!room || fill(layer)) {
        dev_fail(dev, DEV_FAILED, "no host memory for the route indices");
        return;
    }
    layer->groups = layer->block;
    layer->index = index_in(layer, layer->block);
    dev_copy_h2d(main, layer->block, layer->pinned, bytes);
    layer->uploaded = dev_record(main);
}

static enum dev_status finish_open(struct moe_layer *layer, enum dev_status agreed)
{
    struct device *dev = layer->m->dev;
    if (agreed == DEV_OK)
        upload(layer);
    if (dev_status(dev) != DEV_OK)
        moe_layer_close(layer);
    return dev_status(dev);
}

enum dev_status moe_layer_open(struct moe_layer *layer, struct moe *m,
    const struct moe_partition *partition, const struct llep_options *llep)
{
    *layer = (struct moe_layer){.m = m};
    return finish_open(layer, moe_layout_agree(&layer->layout, m, partition, llep));
}

enum dev_status moe_layer_open_by(struct moe_layer *layer, struct moe *m,
    const struct moe_partition *partition, const struct moe_planner *planner)
{
    *layer = (struct moe_layer){.m = m};
    return finish_open(layer, moe_layout_agree_by(&layer->layout, m, partition, planner));
}

void moe_layer_settle(struct moe_layer *layer)
{
    if (!layer->pinned)
        return;
    dev_sync_event(layer->uploaded);
    dev_host_free(layer->m->dev, layer->pinned);
    layer->pinned = NULL;
}

void moe_layer_close(struct moe_layer *layer)
{
    if (!layer->m)
        return;
    moe_layer_settle(layer);
    dev_free(layer->m->dev, layer->block);
    free(layer->row_first);
    free(layer->token_first);
    free(layer->group_first);
    free(layer->parts.send);
    free(layer->parts.receive);
    moe_layout_free(&layer->layout);
    *layer = (struct moe_layer){0};
}

int64_t moe_layer_sent(const struct moe_layer *layer, int64_t chunk)
{
    return layer->row_first[chunk + 1] - layer->row_first[chunk];
}

int64_t moe_layer_received(const struct moe_layer *layer, int64_t chunk)
{
    return moe_layout_received(&layer->layout, layer->m->rank, chunk);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static int64_t own_tokens(const struct moe_layer *layer)
{
    return layer->layout.tokens[layer->m->rank];
}

void moe_layer_gather(
    const struct moe_layer *layer, struct stream *stream, int64_t chunk, const void *from, void *to)
{
    const struct moe_shape *shape = &layer->m->shape;
    gather_rows(stream, &(struct gather_rows_args){.to = to,
                            .from = from,
                            .index = layer->index.token + layer->row_first[chunk],
                            .count = moe_layer_sent(layer, chunk),
                            .from_rows = own_tokens(layer),
                            .row_bytes = shape->hidden * dtype_bytes(shape->dtype)});
}

void moe_layer_gather_weights(
    const struct moe_layer *layer, struct stream *stream, int64_t chunk, float *to)
{
    gather_rows(stream, &(struct gather_rows_args){.to = to,
                            .from = layer->m->router_weight,
                            .index = layer->index.route + layer->row_first[chunk],
                            .count = moe_layer_sent(layer, chunk),
                            .from_rows = own_tokens(layer) * layer->m->shape.topk,
                            .row_bytes = sizeof(float)});
}

void moe_layer_scatter_weights(const struct moe_layer *layer, struct stream *stream, int64_t chunk,
    const float *from, float *dw)
{
    scatter_rows(stream, &(struct scatter_rows_args){.to = dw,
                             .from = from,
                             .index = layer->index.route + layer->row_first[chunk],
                             .count = moe_layer_sent(layer, chunk),
                             .to_rows = own_tokens(layer) * layer->m->shape.topk,
                             .row_bytes = sizeof(float)});
}

void moe_layer_combine(const struct moe_layer *layer, struct stream *stream, int64_t chunk,
    const void *from, bool weighted, void *to)
{
    const struct moe_shape *shape = &layer->m->shape;
    int64_t first = layer->token_first[chunk];
    combine_rows(stream, &(struct combine_rows_args){.from = from,
                             .from_rows = moe_layer_sent(layer, chunk),
                             .from_type = shape->dtype,
                             .position = layer->index.position + first * shape->topk,
                             .weight = weighted ? layer->m->router_weight : NULL,
                             .token = layer->index.chunk_token + first,
                             .count = layer->token_first[chunk + 1] - first,
                             .columns = shape->hidden,
                             .to_rows = own_tokens(layer),
                             .slots = shape->topk,
                             .to_type = shape->dtype,
                             .to = to});
}

/* ---- messages -------------------------------------------------------------------------------- */

static void add(
    struct moe_layer *layer, struct comm_part **list, int *count, int *room, struct comm_part part)
{
    if (part.bytes == 0)
        return;
    if (*count == *room) {
        int more = 2 * *room + 64;
        struct comm_part *grown = realloc(*list, (size_t)more * sizeof *grown);
        if (!grown) {
            dev_fail(layer->m->dev, DEV_FAILED, "no host memory for the messages of an exchange");
            return;
        }
        *list = grown;
        *room = more;
    }
    (*list)[(*count)++] = part;
}

void moe_layer_add_send(struct moe_layer *layer, int peer, const void *data, int64_t bytes)
{
    struct moe_parts *p = &layer->parts;
    struct comm_part part = {peer, (void *)(uintptr_t)data, bytes};
    add(layer, &p->send, &p->sends, &p->send_room, part);
}

void moe_layer_add_receive(struct moe_layer *layer, int peer, void *data, int64_t bytes)
{
    struct moe_parts *p = &layer->parts;
    struct comm_part part = {peer, data, bytes};
    add(layer, &p->receive, &p->receives, &p->receive_room, part);
}

/* One side of the trip: this rank's rows in send order, a part for each place. Both sides list the
 * parts between two ranks by matrix. */
static void add_send_order(
    struct moe_layer *layer, int64_t chunk, const void *rows, int64_t row_bytes, bool home)
{
    const struct moe_layout *layout = &layer->layout;
    const char *at = rows;
    for (int64_t p = 0; p < layout->place_count; p++) {
        int64_t bytes = moe_layout_count(layout, layer->m->rank, chunk, p) * row_bytes;
        if (home)
            moe_layer_add_receive(layer, layout->places[p].rank, (void *)(uintptr_t)at, bytes);
        else
            moe_layer_add_send(layer, layout->places[p].rank, at, bytes);
        at += bytes;
    }
}

/* The other side: rows by matrix, then source rank. */
static void add_received_order(
    struct moe_layer *layer, int64_t chunk, const void *rows, int64_t row_bytes, bool home)
{
    const struct moe_layout *layout = &layer->layout;
    int rank = layer->m->rank;
    const char *at = rows;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        for (int source = 0; source < layout->ranks; source++) {
            int64_t bytes = moe_layout_count(layout, source, chunk, p) * row_bytes;
            if (home)
                moe_layer_add_send(layer, source, at, bytes);
            else
                moe_layer_add_receive(layer, source, (void *)(uintptr_t)at, bytes);
            at += bytes;
        }
}

void moe_layer_send(
    struct moe_layer *layer, int64_t chunk, const void *from, void *to, int64_t row_bytes)
{
    if (dev_status(layer->m->dev) != DEV_OK)
        return;
    add_send_order(layer, chunk, from, row_bytes, false);
    add_received_order(layer, chunk, to, row_bytes, false);
}

void moe_layer_return(
    struct moe_layer *layer, int64_t chunk, const void *from, void *to, int64_t row_bytes)
{
    if (dev_status(layer->m->dev) != DEV_OK)
        return;
    add_received_order(layer, chunk, from, row_bytes, true);
    add_send_order(layer, chunk, to, row_bytes, true);
}

void moe_layer_exchange(
    struct moe_layer *layer, struct comm *comm, struct stream *stream, const char *label)
{
    struct moe_parts *p = &layer->parts;
    comm_exchange(comm, stream, label, p->send, p->sends, p->receive, p->receives);
    p->sends = p->receives = 0;
}
