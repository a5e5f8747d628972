/* Hands out pieces of one range of addresses. It never touches the memory itself, so the same code
 * serves memory of the host, of a GPU, and addresses that no memory stands behind.
 *
 * First fit in address order: what is live stays dense, and a block freed now is the likely answer
 * to the next request, as in a stream-ordered caching allocator. Made for one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define ARENA_ALIGNMENT 256

struct arena_range {
    uintptr_t begin, end;
};

struct arena {
    uintptr_t begin, end;
    uintptr_t reached;         /* no piece ever ended behind it */
    int64_t guard_bytes;       /* kept free behind every piece; a multiple of ARENA_ALIGNMENT */
    struct arena_range *holes; /* free ranges by address, never touching one another; owned */
    int count, capacity;
};

/* Manages [begin, begin + bytes); `begin` is aligned. False when memory is short. */
bool arena_init(struct arena *arena, uintptr_t begin, int64_t bytes, int64_t guard_bytes);
void arena_destroy(struct arena *arena);

/* The address of `bytes` (>= 0) free bytes, aligned to ARENA_ALIGNMENT; a piece of 0 bytes has an
 * address of its own. 0 when no hole is large enough. */
uintptr_t arena_take(struct arena *arena, int64_t bytes);

/* Gives a piece back; `bytes` as it was taken. False, with the piece lost, when memory is short. */
bool arena_give(struct arena *arena, uintptr_t address, int64_t bytes);

/* What a piece of `bytes` takes up, its guard included. */
int64_t arena_span(const struct arena *arena, int64_t bytes);
