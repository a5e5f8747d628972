/* Pieces of reference results that are kept while a program runs, at most so many bytes of them;
 * those unused for longest go first.
 *
 * A family's piece is a struct whose first member is a struct reference_piece. It is known by its
 * inputs, its kind (the family's: which part of a result it is) and by what that part depends on in
 * the order of sums. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFERENCE_ARRAYS_MAX 12 /* six tensors, values and bounds */

/* Inputs are known by a digest of their bytes, which costs less than reading them once in the first
 * product and asks nothing of the caller. */
struct reference_inputs {
    uint64_t digest[2];
};

struct reference_key {
    struct reference_inputs inputs;
    int kind;
    void *order; /* malloced; NULL = none, or the default order */
    int64_t order_bytes;
};

struct reference_piece {
    struct reference_piece *next;
    struct reference_key key;
    void *arrays[REFERENCE_ARRAYS_MAX];
    int array_count;
    int64_t bytes, last_use;
};

/* {.limit_bytes} begins an empty one. */
struct reference_store {
    struct reference_piece *pieces;
    int64_t limit_bytes, kept_bytes;
    int64_t use; /* counts calls, by the caller; pieces of the call at hand are never dropped */
};

void reference_store_free(struct reference_store *store);

/* The digest of `count` blocks one after the other. 0, or -1 when memory is short. */
struct reference_block {
    const void *bytes;
    int64_t count;
};
int reference_digest(
    const struct reference_block *blocks, int count, struct reference_inputs *inputs);

/* The piece of that key, a family's of `size` bytes: from the store, or, with *missing set, a new
 * one of zeros that is the caller's until it is kept. Takes key->order over. NULL when memory is
 * short. */
void *reference_find_or_create(
    struct reference_store *store, struct reference_key *key, size_t size, bool *missing);

/* An array of the piece, which frees it, with room for `count` elements; NULL when memory is short
 * or the piece has REFERENCE_ARRAYS_MAX. */
void *reference_take(struct reference_piece *piece, int64_t count, int64_t element_bytes);

/* Drops pieces, longest unused first, until `bytes` more fit or only the call's own are left. */
void reference_make_room(struct reference_store *store, int64_t bytes);

/* The piece is the store's from here. */
void reference_keep(struct reference_store *store, struct reference_piece *piece);

/* Of a piece that is not kept. */
void reference_piece_free(struct reference_piece *piece);
