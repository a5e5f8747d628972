/* The function of rotary_isa.c, one table per instruction set: rows [begin, end). */
#pragma once
#include <stdint.h>
#include "kernels/rotary.h"

struct rotary_functions {
    void (*turn)(const struct rotary_args *args, int64_t begin, int64_t end);
};
