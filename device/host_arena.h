/* An arena of ordinary host memory: one reservation of addresses, much larger than its limit, so
 * that no fragmentation can make an allocation fail that the accounting allows. Pages cost
 * something once they are touched, and read as zeros before. Built with the address sanitizer, free
 * space is poisoned. Made for one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/arena.h"

struct host_arena {
    char *mapping; /* NULL: not open */
    int64_t mapped_bytes;
    uintptr_t usable_end; /* up to here the mapping may be touched */
    struct arena arena;
};

/* Whether free space is poisoned, so that it matters when a block is given back. */
bool host_arena_poisons(void);

/* Room for more than limit_bytes (0: for more than the machine has), or for what the system allows.
 * False when that is next to nothing. */
bool host_arena_open(struct host_arena *memory, int64_t limit_bytes);
void host_arena_close(struct host_arena *memory);

/* Touched memory comes in small pages from now on: for an arena that is touched here and there. */
void host_arena_small_pages(struct host_arena *memory);

/* As arena_take and arena_give. NULL when there is no room, or the system has no memory. */
void *host_arena_take(struct host_arena *memory, int64_t bytes);
void host_arena_give(struct host_arena *memory, void *block, int64_t bytes);
