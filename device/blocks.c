/* A sorted array of pointers: a lookup is a binary search, an insertion moves a few hundred
 * pointers. Records are separate from the memory they describe, so no stray write can damage them
 * and no storage needs to stand behind the addresses. */
#include "device/blocks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many blocks begin at or before `address`. */
static int count_up_to(const struct block_table *table, const char *address)
{
    int low = 0, high = table->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uintptr_t)table->blocks[middle]->address > (uintptr_t)address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct block *blocks_add(
    struct block_table *table, void *address, int64_t bytes, enum live_set set, const char *label)
{
    if (table->count == table->capacity) {
        int capacity = table->capacity ? 2 * table->capacity : 64;
        struct block **blocks = realloc(table->blocks, (size_t)capacity * sizeof *blocks);
        if (!blocks)
            return NULL;
        table->blocks = blocks;
        table->capacity = capacity;
    }
    struct block *block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    block->address = address;
    block->bytes = bytes;
    block->set = set;
    snprintf(block->label, sizeof block->label, "%s", label ? label : "");
    int index = count_up_to(table, address);
    memmove(table->blocks + index + 1, table->blocks + index,
        (size_t)(table->count - index) * sizeof *table->blocks);
    table->blocks[index] = block;
    table->count++;
    return block;
}

static void free_block(struct block *block)
{
    free(block->records);
    free(block);
}

void blocks_remove(struct block_table *table, struct block *block)
{
    struct block_memory *gone = &table->gone[table->gone_count++ % BLOCKS_REMEMBERED];
    gone->address = block->address;
    gone->bytes = block->bytes;
    memcpy(gone->label, block->label, sizeof gone->label);
    int index = count_up_to(table, block->address) - 1;
    table->count--;
    memmove(table->blocks + index, table->blocks + index + 1,
        (size_t)(table->count - index) * sizeof *table->blocks);
    free_block(block);
}

static bool holds(const char *begin, int64_t bytes, const void *address)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)begin;
    return offset < (uintptr_t)(bytes > 0 ? bytes : 1);
}

struct block *blocks_find(const struct block_table *table, const void *address)
{
    int index = count_up_to(table, address) - 1;
    if (index < 0 || !holds(table->blocks[index]->address, table->blocks[index]->bytes, address))
        return NULL;
    return table->blocks[index];
}

const char *blocks_gone(const struct block_table *table, const void *address)
{
    for (int64_t i = table->gone_count; i-- > 0 && i >= table->gone_count - BLOCKS_REMEMBERED;) {
        const struct block_memory *gone = &table->gone[i % BLOCKS_REMEMBERED];
        if (holds(gone->address, gone->bytes, address))
            return gone->label;
    }
    return NULL;
}

void blocks_destroy(struct block_table *table)
{
    for (int i = 0; i < table->count; i++)
        free_block(table->blocks[i]);
    free(table->blocks);
    memset(table, 0, sizeof *table);
}
