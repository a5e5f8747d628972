/* The MoP rank layout: W ranks that belong to several groups at once.
 *
 * Each degree d cuts the W ranks into blocks of d neighbours: block r div d is where rank r splits
 * something with others (a sequence, the experts, the vocabulary), and r mod d its place there. The
 * ranks of equal place in all blocks, W/d of them with stride d, hold the same part: its replicas.
 * The degrees are chosen one by one, each dividing W; their product need not be W, and groups of
 * different degrees overlap.
 *
 *     W = 8, D = 2     block    0 1 | 2 3 | 4 5 | 6 7        replicas    0 2 4 6 | 1 3 5 7
 *     E_p = 8          block    0 1 2 3 4 5 6 7              replicas    0 | 1 | ... | 7
 *     P = 4            block    0 1 2 3 | 4 5 6 7            replicas    0 4 | 1 5 | 2 6 | 3 7
 *
 * Every rank takes part in the collectives of all its groups, in one order, even with no tokens.
 * The block-and-stride formula is our assumption: the paper draws it (Figure 1) and does not print
 * it. */
#pragma once
#include "device/comm.h"

#define LAYOUT_RANKS_MAX 1024

enum layout_degree {
    LAYOUT_SEQUENCE, /* D: ranks that share a sequence, and then the heads */
    LAYOUT_EXPERTS,  /* E_p */
    LAYOUT_VOCAB,    /* P */
    LAYOUT_DEGREES
};

struct layout_shape {
    int ranks;                  /* W */
    int degree[LAYOUT_DEGREES]; /* D, E_p, P */
    int64_t heads, experts;     /* what D and E_p must divide */
};

/* Ranks that split something, or hold the same part of it: first, first + stride, ... */
struct layout_group {
    int first, stride, size;
    int place; /* this rank's, 0 .. size - 1 */
};

/* 0, or -1 with a message naming the condition that does not hold: 1 <= W <= LAYOUT_RANKS_MAX,
 * 1 <= degree, D | W, E_p | W,
 * P | W, D | heads, E_p | experts. */
int layout_check(const struct layout_shape *shape, char *error, int size);

/* The block of a rank, and its replicas. */
struct layout_group layout_block(
    const struct layout_shape *shape, enum layout_degree degree, int rank);
struct layout_group layout_replicas(
    const struct layout_shape *shape, enum layout_degree degree, int rank);

/* The first element of the slice of `count` that a group's member at `place` holds; at `holders`,
 * the end: the slice of each is its share rounded down or up. */
int64_t layout_slice_first(int64_t count, int64_t holders, int64_t place);

const char *layout_degree_name(enum layout_degree degree); /* "sequence", "experts", "vocabulary" */

/* One rank's groups with their communicators, each over its own ranks. */
struct layout {
    struct layout_shape shape;
    int rank;
    struct layout_group block[LAYOUT_DEGREES], replicas[LAYOUT_DEGREES];
    struct comm *block_comm[LAYOUT_DEGREES], *replicas_comm[LAYOUT_DEGREES];
};

/* Collective over `world`, whose size is shape->ranks; the shape is checked. The communicators
 * live as long as the world's group. DEV_OK, or the device's status. */
enum dev_status layout_open(struct layout *layout, const struct layout_shape *shape,
    struct device *dev, struct comm *world);
