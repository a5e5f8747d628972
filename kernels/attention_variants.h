/* The functions of attention_isa.c, one table per instruction set. Each does items [begin, end) of
 * its kernel on the calling thread: item i is block i mod blocks of head (i div blocks) mod heads
 * of sequence i div (blocks * heads), with ATTENTION_BLOCK tokens in a block. */
#pragma once
#include <stdint.h>

#define ATTENTION_BLOCK 32

typedef void attention_items(const void *args, int64_t begin, int64_t end);

struct attention_functions {
    attention_items *forward, *queries, *keys;
};
