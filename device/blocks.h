/* The live blocks of one arena, by address: what an address belongs to, for free, for copies and
 * for the order check. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "probe/memory.h"

#define BLOCK_LABEL 48
#define BLOCKS_REMEMBERED 64

struct order_record;

struct block {
    char *address;
    int64_t bytes;
    enum live_set set;
    char label[BLOCK_LABEL];
    /* What the order check knows about it (device/order.c). */
    struct order_record *records;
    int record_count, record_capacity;
};

/* A block that is gone, so that a message can still name it. */
struct block_memory {
    const char *address;
    int64_t bytes;
    char label[BLOCK_LABEL];
};

struct block_table {
    struct block **blocks; /* by address; owned */
    int count, capacity;
    struct block_memory gone[BLOCKS_REMEMBERED]; /* a ring */
    int64_t gone_count;
};

/* Adds a block. NULL when memory is short. */
struct block *blocks_add(
    struct block_table *table, void *address, int64_t bytes, enum live_set set, const char *label);

/* Forgets a block and frees what the table keeps about it. */
void blocks_remove(struct block_table *table, struct block *block);

/* The block that holds the byte at `address` (of a block of 0 bytes: its address). NULL: none. */
struct block *blocks_find(const struct block_table *table, const void *address);

/* The label of the latest removed block that held `address`, or NULL. */
const char *blocks_gone(const struct block_table *table, const void *address);

void blocks_destroy(struct block_table *table);
