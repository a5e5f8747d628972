/* A sorted array of holes. Blocks are few (hundreds) and holes fewer, so a scan costs less than the
 * kernel that the block is for; neighbours are joined at once, so fragmentation cannot creep in. */
#include "device/arena.h"
#include <stdlib.h>
#include <string.h>

bool arena_init(struct arena *arena, uintptr_t begin, int64_t bytes, int64_t guard_bytes)
{
    memset(arena, 0, sizeof *arena);
    arena->capacity = 16;
    arena->holes = malloc(arena->capacity * sizeof *arena->holes);
    if (!arena->holes)
        return false;
    arena->begin = begin;
    arena->end = begin + (uintptr_t)bytes;
    arena->reached = begin;
    arena->guard_bytes = guard_bytes;
    arena->holes[0] = (struct arena_range){arena->begin, arena->end};
    arena->count = 1;
    return true;
}

void arena_destroy(struct arena *arena)
{
    free(arena->holes);
    memset(arena, 0, sizeof *arena);
}

int64_t arena_span(const struct arena *arena, int64_t bytes)
{
    int64_t rounded = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return (rounded ? rounded : ARENA_ALIGNMENT) + arena->guard_bytes;
}

static void remove_hole(struct arena *arena, int index)
{
    arena->count--;
    memmove(arena->holes + index, arena->holes + index + 1,
        (size_t)(arena->count - index) * sizeof *arena->holes);
}

uintptr_t arena_take(struct arena *arena, int64_t bytes)
{
    if (bytes > (int64_t)(arena->end - arena->begin))
        return 0;
    uintptr_t span = (uintptr_t)arena_span(arena, bytes);
    for (int i = 0; i < arena->count; i++) {
        struct arena_range *hole = &arena->holes[i];
        if (hole->end - hole->begin < span)
            continue;
        uintptr_t address = hole->begin;
        hole->begin += span;
        if (arena->reached < hole->begin)
            arena->reached = hole->begin;
        if (hole->begin == hole->end)
            remove_hole(arena, i);
        return address;
    }
    return 0;
}

/* The first hole that begins behind `address`. */
static int hole_behind(const struct arena *arena, uintptr_t address)
{
    int low = 0, high = arena->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (arena->holes[middle].begin > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool insert_hole(struct arena *arena, int index, struct arena_range range)
{
    if (arena->count == arena->capacity) {
        int capacity = 2 * arena->capacity;
        struct arena_range *holes = realloc(arena->holes, (size_t)capacity * sizeof *holes);
        if (!holes)
            return false;
        arena->holes = holes;
        arena->capacity = capacity;
    }
    memmove(arena->holes + index + 1, arena->holes + index,
        (size_t)(arena->count - index) * sizeof *arena->holes);
    arena->holes[index] = range;
    arena->count++;
    return true;
}

bool arena_give(struct arena *arena, uintptr_t address, int64_t bytes)
{
    struct arena_range range = {address, address + (uintptr_t)arena_span(arena, bytes)};
    int index = hole_behind(arena, address);
    bool joins_before = index > 0 && arena->holes[index - 1].end == range.begin;
    bool joins_behind = index < arena->count && arena->holes[index].begin == range.end;
    if (joins_before && joins_behind) {
        arena->holes[index - 1].end = arena->holes[index].end;
        remove_hole(arena, index);
    } else if (joins_before) {
        arena->holes[index - 1].end = range.end;
    } else if (joins_behind) {
        arena->holes[index].begin = range.begin;
    } else {
        return insert_hole(arena, index, range);
    }
    return true;
}
