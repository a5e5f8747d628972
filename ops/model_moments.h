/* What a composed step holds at its fullest moments, live set by live set: closed forms that equal
 * the tracked peaks to the byte, given what the dispatch holds. */
#pragma once
#include "ops/model.h"

/* What takes turns while weights, optimizer and inputs stay. */
enum model_turn {
    MODEL_TURN_ATTENTION, /* a block's backward; its forward holds less */
    MODEL_TURN_EXPERTS,   /* likewise */
    MODEL_TURN_HEAD,      /* vocabulary, and its gradient leaving */
    MODEL_TURN_EMBEDDING, /* its gradient, then the norms', leaving */
    MODEL_TURNS
};

/* Bytes on the device, what stays included: in each turn and in the whole step, of all live sets
 * together and of each one by itself. */
struct model_moments {
    struct moe_peaks turn[MODEL_TURNS], step;
    int64_t stays_bytes[LIVE_SET_COUNT]; /* all step long, in whatever turn */
    int64_t slices_bytes;                /* of these, the slices of weights that the rank updates */
    int64_t host_bytes;                  /* pinned, but for what the dispatch pins */
};

/* What the dispatch holds over resident, by layer: forward and backward together as
 * moe_impl.expected_bytes has it. */
struct model_dispatch {
    const struct moe_peaks *peaks;
    bool by_layer; /* [L], else one for all layers */
};

/* Of rank `rank`, with any implementation of each family but full-activations. 0, or -1 when memory
 * is short. */
int model_moments(struct model_moments *out, const struct model_shape *shape,
    const struct model_options *options, int rank, const struct model_dispatch *dispatch);
