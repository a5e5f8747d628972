/* The functions of rmsnorm_isa.c, one table per instruction set. Each does a part of its kernel on
 * the calling thread: rows, columns of the gain's gradient, or elements [begin, end). */
#pragma once
#include <stdint.h>

typedef void rmsnorm_items(const void *args, int64_t begin, int64_t end);

struct rmsnorm_functions {
    rmsnorm_items *forward, *backward, *gain, *add;
};
