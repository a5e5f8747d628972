/* What the CPU kernels share beside their arithmetic: dividing items over a team, and listing the
 * memory that a launch touches. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"

struct item_range {
    int64_t begin, end;
};

/* Part `index` of `parts` nearly equal contiguous parts of `items`. */
static inline struct item_range item_range(int64_t items, int index, int parts)
{
    struct item_range range = {items * index / parts, items * (index + 1) / parts};
    return range;
}

/* Into how many parts `items` should be cut: at most one per thread and per item, and none so small
 * that waking a thread costs more than it saves. `item_elements` is the work of one item. */
static inline int item_parts(const struct dev_team *team, int64_t items, int64_t item_elements)
{
    const int64_t elements_worth_a_thread = 16384;
    int64_t parts = team ? team_size(team) : 1;
    int64_t worth = items * item_elements / elements_worth_a_thread;
    parts = worth < parts ? worth : parts;
    parts = items < parts ? items : parts;
    return parts > 1 ? (int)parts : 1;
}

/* Appends [from, from + bytes) to the ranges unless it is empty; returns the new count. */
static inline int add_access(
    struct dev_access *ranges, int count, const void *from, int64_t bytes, bool write)
{
    if (bytes <= 0)
        return count;
    ranges[count].from = from;
    ranges[count].bytes = bytes;
    ranges[count].write = write;
    return count + 1;
}

/* Bytes from the first to the last element of an FP32 matrix with `ld` elements between rows. */
static inline int64_t strided_f32_bytes(int64_t rows, int64_t columns, int64_t ld)
{
    return rows > 0 && columns > 0 ? ((rows - 1) * ld + columns) * (int64_t)sizeof(float) : 0;
}
