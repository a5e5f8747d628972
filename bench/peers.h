/* The bars that our kernels are held to, and how a bar is measured. Each bench/peers_NAME.c brings
 * groups of bars; peers.c lists them and runs each in a process of its own. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"

struct peers_counts {
    int passed, failed, skipped;
};

struct peers {
    const char *only; /* comma list of parts of bars' names; NULL = all */
    int64_t rounds;   /* samples of each contestant */
    int cpus[2];      /* where threads are pinned: the main thread, all others */
    int cpu_count;    /* 1 or 2 */
    struct dev_pool *pool;
    struct peers_counts *counts;
};

/* One side of a comparison: `run` does the work once, on `threads` threads. */
struct peers_contestant {
    const char *name;
    void (*run)(void *context);
    void *context;
    int threads;
    /* In place of run: does the work once and tells the seconds of the part that counts. Its
     * threads are its own and are not pinned. */
    double (*seconds)(void *context);
};

/* Is the bar of that name asked for? */
bool peers_wants(const struct peers *peers, const char *name);

/* Measures both in turn, `rounds` times, and holds the median over the rounds of (seconds of
 * `other` / seconds of `ours`) against `least`. Prints one line: the name, the median rates as
 * `work` / seconds, the ratio, pass or FAIL. `work` / 1e9 is in `unit`, "GF". */
void peers_bar(struct peers *peers, const char *name, const struct peers_contestant *ours,
    const struct peers_contestant *other, double work, const char *unit, double least);

/* A bar that cannot be measured here: neither passes nor fails. */
void peers_skip(struct peers *peers, const char *name, const char *reason);

/* A wrong result has no time: fails. */
void peers_fault(struct peers *peers, const char *name, const char *what);

/* Groups. Each returns 0, or -1 after a line on stderr that says why it cannot run at all. */
int peers_gemm_avx512(struct peers *peers);
int peers_gemm_avx2(struct peers *peers);
int peers_vocab(struct peers *peers);
int peers_adamw(struct peers *peers);
int peers_moe(struct peers *peers);
int peers_dispatch(struct peers *peers);
int peers_offload(struct peers *peers);
int peers_stack(struct peers *peers);
int peers_math_avx512(struct peers *peers);
int peers_math_avx2(struct peers *peers);
