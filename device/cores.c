/* Cores by the affinity of threads. */
#include "device/cores.h"
#include <sched.h>
#include <stdlib.h>

struct cores {
    cpu_set_t all;
    int count;
    int number[CPU_SETSIZE]; /* the system's, of each */
};

struct cores *cores_open(void)
{
    struct cores *cores = calloc(1, sizeof *cores);
    if (!cores || sched_getaffinity(0, sizeof cores->all, &cores->all)) {
        free(cores);
        return NULL;
    }
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &cores->all))
            cores->number[cores->count++] = i;
    }
    return cores;
}

void cores_close(struct cores *cores)
{
    free(cores);
}

int cores_count(const struct cores *cores)
{
    return cores->count;
}

int cores_here(const struct cores *cores)
{
    int number = sched_getcpu();
    for (int i = 0; i < cores->count; i++) {
        if (cores->number[i] == number)
            return i;
    }
    return -1;
}

void cores_hold(const struct cores *cores, pthread_t thread, int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores->number[core], &one);
    pthread_setaffinity_np(thread, sizeof one, &one);
}

void cores_let_go(const struct cores *cores, pthread_t thread)
{
    pthread_setaffinity_np(thread, sizeof cores->all, &cores->all);
}
