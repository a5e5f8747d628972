/* Cores, and threads that are held to one.
 *
 * A system that wakes a thread may put it on a core that is busy and leave another idle for
 * milliseconds; where the pool has a token for every core (device/pool.c), each token is a core and
 * whoever holds it runs there. */
#pragma once
#include <pthread.h>

struct cores;

/* The cores that the calling thread may run on, numbered from 0. NULL without memory, or where the
 * system has more than 1024. */
struct cores *cores_open(void);
void cores_close(struct cores *cores); /* NULL: nothing */

int cores_count(const struct cores *cores);

/* The one that the calling thread is on; -1: none of these. It may be another in a moment. */
int cores_here(const struct cores *cores);

/* Moves a thread to one of the cores, until it is let go to all of them. Where the system refuses
 * it stays as it is: this is about speed alone. */
void cores_hold(const struct cores *cores, pthread_t thread, int core);
void cores_let_go(const struct cores *cores, pthread_t thread);
