/* The inside of the pool, for the backends that run kernels on the host's threads. */
#pragma once
#include <stdbool.h>
#include "device/device.h"

struct dev_team {
    struct dev_pool *pool;
    int size;
};

/* Takes one of the pool's tokens for the calling thread, first come, first served; gives it back. A
 * thread runs a kernel only while it holds one, and where tokens are cores, on that core. */
int pool_enter(struct dev_pool *pool);
void pool_leave(struct dev_pool *pool, int token);

/* Leaves and enters at once, for the next kernel: keeps the token where nobody waits for it. */
int pool_enter_again(struct dev_pool *pool, int token);

/* The calling thread begins or ends work that needs a core (a kernel, a copy). */
void pool_begin_work(struct dev_pool *pool);
void pool_end_work(struct dev_pool *pool);

/* A short wait that looks again and again instead of sleeping:
 *     struct pool_spin spin;
 *     for (pool_spin_begin(&spin, pool, seconds); !ready && pool_spin_goes_on(&spin);) look again
 *     pool_spin_end(&spin);
 * It goes on while fewer threads work than there are cores and the time is not over, and lets
 * others that are ready to run have the core now and then: the thread waited for may be one of
 * them. */
struct pool_spin {
    struct dev_pool *pool;
    int turn;
    double end_s;
};
void pool_spin_begin(struct pool_spin *spin, struct dev_pool *pool, double seconds);
bool pool_spin_goes_on(struct pool_spin *spin);
void pool_spin_end(struct pool_spin *spin);
