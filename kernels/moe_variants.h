/* The functions of moe_isa.c, one table per instruction set. Each does a part of its kernel on the
 * calling thread; args is the kernel's argument struct. */
#pragma once
#include <stdint.h>

/* Items [begin, end): elements of an activation, tokens of a combine, routes of its backward. */
typedef void moe_items(const void *args, int64_t begin, int64_t end);

struct moe_functions {
    moe_items *activation, *activation_backward, *combine, *route_backward;
    /* to[i] = from[i] rounded; they do not overlap. */
    void (*round_bf16)(uint16_t *to, const float *from, int64_t count);
};
