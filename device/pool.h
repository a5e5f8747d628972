/* The inside of the pool, for the backends that run kernels on the host's threads. */
#pragma once
#include <stdbool.h>
#include "device/device.h"

struct dev_team {
    struct dev_pool *pool;
    int size;
};

/* Takes one of the pool's tokens for the calling thread, first come, first served; gives it back. A
 * thread runs a kernel only while it holds one. */
void pool_enter(struct dev_pool *pool);
void pool_leave(struct dev_pool *pool);

/* The calling thread begins or ends work that needs a core (a kernel, a copy). */
void pool_begin_work(struct dev_pool *pool);
void pool_end_work(struct dev_pool *pool);

/* Whether a core is free for a thread that waits by spinning. */
bool pool_may_spin(struct dev_pool *pool);

/* One turn of a spin loop. */
void pool_relax(void);
