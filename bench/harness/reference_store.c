/* A list of pieces: there are a few dozen at most, so it is walked. */
#include "bench/harness/reference_store.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void reference_piece_free(struct reference_piece *piece)
{
    for (int i = 0; i < piece->array_count; i++)
        free(piece->arrays[i]);
    free(piece->key.order);
    free(piece);
}

void reference_store_free(struct reference_store *store)
{
    while (store->pieces) {
        struct reference_piece *next = store->pieces->next;
        reference_piece_free(store->pieces);
        store->pieces = next;
    }
    store->kept_bytes = 0;
}

int reference_digest(
    const struct reference_block *blocks, int count, struct reference_inputs *inputs)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -1;
    XXH3_128bits_reset(state);
    for (int i = 0; i < count; i++)
        XXH3_128bits_update(state, blocks[i].bytes, (size_t)blocks[i].count);
    XXH128_hash_t digest = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    *inputs = (struct reference_inputs){{digest.low64, digest.high64}};
    return 0;
}

static bool keys_equal(const struct reference_key *a, const struct reference_key *b)
{
    return a->kind == b->kind && a->inputs.digest[0] == b->inputs.digest[0] &&
           a->inputs.digest[1] == b->inputs.digest[1] && !a->order == !b->order &&
           a->order_bytes == b->order_bytes &&
           (!a->order || !memcmp(a->order, b->order, (size_t)a->order_bytes));
}

void *reference_find_or_create(
    struct reference_store *store, struct reference_key *key, size_t size, bool *missing)
{
    struct reference_piece *piece = store->pieces;
    while (piece && !keys_equal(&piece->key, key))
        piece = piece->next;
    *missing = !piece;
    if (!piece)
        piece = calloc(1, size);
    if (piece && *missing) {
        piece->key = *key;
        piece->bytes = key->order_bytes;
    } else {
        free(key->order);
    }
    key->order = NULL;
    if (piece)
        piece->last_use = store->use;
    return piece;
}

void *reference_take(struct reference_piece *piece, int64_t count, int64_t element_bytes)
{
    void *array = NULL;
    if (piece->array_count < REFERENCE_ARRAYS_MAX)
        array = malloc((size_t)(count > 0 ? count : 1) * (size_t)element_bytes);
    if (array) {
        piece->arrays[piece->array_count++] = array;
        piece->bytes += count * element_bytes;
    }
    return array;
}

void reference_make_room(struct reference_store *store, int64_t bytes)
{
    while (store->kept_bytes + bytes > store->limit_bytes) {
        struct reference_piece **oldest = NULL;
        for (struct reference_piece **p = &store->pieces; *p; p = &(*p)->next)
            if ((*p)->last_use < store->use && (!oldest || (*p)->last_use < (*oldest)->last_use))
                oldest = p;
        if (!oldest)
            return;
        struct reference_piece *dropped = *oldest;
        *oldest = dropped->next;
        store->kept_bytes -= dropped->bytes;
        reference_piece_free(dropped);
    }
}

void reference_keep(struct reference_store *store, struct reference_piece *piece)
{
    piece->next = store->pieces;
    store->pieces = piece;
    store->kept_bytes += piece->bytes;
}
