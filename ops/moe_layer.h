/* One rank's side of a layer while it runs: its layout, the index arrays on the device, and the
 * steps of which every dispatcher is made.
 *
 *   tokens --gather--> send rows --send--> received rows --experts--> received rows
 *          <--combine-- send rows <--return--
 *
 * A chunk's rows are in the order of ops/moe_route.h on both sides, so a row comes home to where it
 * was sent from, and what is returned is summed by position. */
#pragma once
#include <stdint.h>
#include "device/comm.h"
#include "ops/moe.h"
#include "ops/moe_route.h"

/* The messages of an exchange that is being put together. */
struct moe_parts {
    struct comm_part *send, *receive;
    int sends, receives, send_room, receive_room;
};

struct moe_layer {
    struct moe *m;
    struct moe_layout layout;

    /* on the device, one block, and the pinned block that it is copied from */
    void *block, *pinned;
    struct event uploaded;
    struct moe_index index;
    struct expert_group *groups;
    /* on the host [chunks + 1]: where a chunk's rows, tokens and groups begin */
    int64_t *row_first, *token_first, *group_first;

    struct moe_parts parts;
    const struct moe_reorder *reorder; /* of weight gradients; NULL = rows as they lie */
};

/* Agrees on the layout and uploads the index arrays on the main stream; collective. The block is in
 * LIVE_WORKSPACE, moe_layer_bytes long. DEV_OK, or the device's status, then closed. */
enum dev_status moe_layer_open(struct moe_layer *layer, struct moe *m,
    const struct moe_partition *partition, const struct llep_options *llep);

/* The same with a plan of another kind. */
enum dev_status moe_layer_open_by(struct moe_layer *layer, struct moe *m,
    const struct moe_partition *partition, const struct moe_planner *planner);

/* Waits for the upload and frees the pinned block: to be called once everything is enqueued. */
void moe_layer_settle(struct moe_layer *layer);

/* Frees it, behind the main stream; any number of times. */
void moe_layer_close(struct moe_layer *layer);

int64_t moe_layer_bytes(const struct moe_layout *layout, int rank);

/* Of a chunk on this rank. */
int64_t moe_layer_sent(const struct moe_layer *layer, int64_t chunk);
int64_t moe_layer_received(const struct moe_layer *layer, int64_t chunk);

/* to[i] = the row of send row i's token: from [N, H] in the problem's type. */
void moe_layer_gather(const struct moe_layer *layer, struct stream *stream, int64_t chunk,
    const void *from, void *to);

/* to[i] = the router weight of send row i, FP32; and the other way, its gradient into dw [N, k]. */
void moe_layer_gather_weights(
    const struct moe_layer *layer, struct stream *stream, int64_t chunk, float *to);
void moe_layer_scatter_weights(const struct moe_layer *layer, struct stream *stream, int64_t chunk,
    const float *from, float *dw);

/* Sums the chunk's tokens over their slots: rows `from` in send order, with the router weights or
 * as they are, into to [N, H]. */
void moe_layer_combine(const struct moe_layer *layer, struct stream *stream, int64_t chunk,
    const void *from, bool weighted, void *to);

/* Adds messages: the chunk's send rows to where they are received, or back. row_bytes each. */
void moe_layer_send(
    struct moe_layer *layer, int64_t chunk, const void *from, void *to, int64_t row_bytes);
void moe_layer_return(
    struct moe_layer *layer, int64_t chunk, const void *from, void *to, int64_t row_bytes);

/* Adds one message. */
void moe_layer_add_send(struct moe_layer *layer, int peer, const void *data, int64_t bytes);
void moe_layer_add_receive(struct moe_layer *layer, int peer, void *data, int64_t bytes);

/* Enqueues what was added as one exchange, and begins the next. */
void moe_layer_exchange(
    struct moe_layer *layer, struct comm *comm, struct stream *stream, const char *label);
