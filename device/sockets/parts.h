/* Between the files of device/sockets/: who the processes are, and what connects them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SOCKETS_HOST_TEXT 64

/* Another process of the job, or this one. */
struct sockets_process {
    char host[SOCKETS_HOST_TEXT];
    int socket; /* that does not block; -1: this process itself, or closed */
};

struct sockets_job {
    int processes, process;
    struct sockets_process *all; /* [processes], owned */
};

/* Meets the other processes by the file that the environment names and connects to each of them.
 * 0, or -1 with `error`; then nothing is open. */
int sockets_meet(struct sockets_job *job, char *error, size_t size);

/* Which process of how many this is, as a launcher's variables say; false when none does. */
bool sockets_place(int *process, int *processes);
