/* What a process knows of how it was started, for launch*.c alone. */
#pragma once
#include <sched.h>
#include "device/device.h"
#include "device/launch.h"

#define LAUNCH_HOST_TEXT 64

/* Of every process. */
struct launch_place {
    char host[LAUNCH_HOST_TEXT];
    cpu_set_t cpus; /* that it may run on */
};

struct launch {
    const char *program;
    bool started;
    bool launched; /* by a launcher, if alone */
    int processes, process, per_process;
    const char *library;
    /* [processes], owned; NULL when alone */
    struct launch_place *places;
    int *node, *local; /* node of each process, and which of the node's it is */
    int node_count;
    int node_cpus, cpus;
    struct dev_place *gpus; /* [ranks], owned; NULL until they are known */
    int said;               /* what stderr was while a command line is read, and what it is then: */
    int words;              /* what this process has to say of it; -1: not kept */
};
extern struct launch launch;
