/* Random numbers of a test: the same in every run. */
#pragma once
#include <stdint.h>

static inline uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* 0 to `below` - 1. */
static inline int draw(uint64_t *state, int below)
{
    return (int)(next_random(state) % (uint64_t)below);
}

/* One of the numbers that divide `of`. */
static inline int draw_divisor(uint64_t *state, int of)
{
    int divisor = 1 + draw(state, of);
    while (of % divisor)
        divisor--;
    return divisor;
}
