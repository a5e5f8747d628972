/* What processes agree on: whether all can go on, and what the main one decides; and where the
 * GPUs of their ranks are. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/launch_state.h"

#define EXIT_DIFFERENT 2 /* bad input: options that differ */
#define WORDS_TEXT 400

bool launch_all(bool mine)
{
    char own = mine, *all = calloc((size_t)launch.processes, 1);
    bool every = mine;
    if (!launch.started || !all) {
        free(all);
        return mine;
    }
    launch_gather(&own, all, 1);
    for (int p = 0; p < launch.processes; p++)
        every &= all[p] != 0;
    free(all);
    return every;
}

int launch_follow_value(int value)
{
    int *all = launch.started ? malloc((size_t)launch.processes * sizeof *all) : NULL;
    if (!all)
        return value;
    launch_gather(&value, all, sizeof value);
    value = all[0];
    free(all);
    return value;
}

bool launch_follow(bool decision)
{
    return launch_follow_value(decision) != 0;
}

/* How a process came out of its command line. */
struct start {
    int status;
    uint64_t hash;            /* of all its arguments */
    char options[WORDS_TEXT]; /* their beginning */
    char words[WORDS_TEXT];   /* of what it said */
};

/* FNV-1a; the end of each argument counts too. */
static uint64_t hash_of(int argc, char *const *argv)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 1; i < argc; i++) {
        for (const char *c = argv[i];; c++) {
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
            if (!*c)
                break;
        }
    }
    return hash;
}

/* Gives stderr back and takes what was written meanwhile. */
static void take_words(char *text, size_t size)
{
    text[0] = 0;
    if (launch.said < 0)
        return;
    fflush(stderr);
    ssize_t bytes = pread(launch.words, text, size - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    dup2(launch.said, STDERR_FILENO);
    close(launch.said);
    close(launch.words);
    launch.said = launch.words = -1;
}

/* The status that differs from the main process's, said by it. */
static int name_difference(const struct start *all)
{
    for (int p = 1; p < launch.processes; p++) {
        int rank = p * launch.per_process;
        if (all[p].hash != all[0].hash) {
            fprintf(stderr,
                "%s: rank %d on %s was started with other options than rank 0 on %s:\n"
                "    %s\n    %s\n",
                launch.program, rank, launch_host(rank), launch_host(0), all[p].options,
                all[0].options);
            return EXIT_DIFFERENT;
        }
        if (all[p].status != all[0].status) {
            fprintf(stderr, "%s: rank %d on %s cannot go on: %s", launch.program, rank,
                launch_host(rank), all[p].words[0] ? all[p].words : "it has not said why\n");
            return all[p].status > 0 ? all[p].status : all[0].status;
        }
    }
    return all[0].status;
}

int launch_agree(int status, int argc, char *const *argv)
{
    struct start mine = {.status = status, .hash = hash_of(argc, argv)};
    struct start *all = launch.started ? malloc((size_t)launch.processes * sizeof *all) : NULL;
    if (!all)
        return status;
    size_t used = 0;
    for (int i = 1; i < argc && used < sizeof mine.options - 1; i++)
        used += (size_t)snprintf(
            mine.options + used, sizeof mine.options - used, "%s%s", i > 1 ? " " : "", argv[i]);
    take_words(mine.words, sizeof mine.words);
    launch_gather(&mine, all, sizeof mine);
    int agreed = status;
    if (launch_is_main())
        agreed = name_difference(all);
    free(all);
    return launch_follow_value(agreed);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

bool launch_set_gpus(const struct dev_place *mine)
{
    if (!launch.started)
        return true;
    free(launch.gpus);
    launch.gpus = calloc((size_t)launch_ranks(), sizeof *launch.gpus);
    bool sound = launch_all(launch.gpus != NULL);
    if (sound)
        launch_gather(mine, launch.gpus, (int64_t)sizeof *mine * launch.per_process);
    return sound;
}

const struct dev_place *launch_gpu(int rank)
{
    return launch.gpus ? &launch.gpus[rank] : NULL;
}

static bool is_first_on_gpu(int rank)
{
    for (int r = 0; r < rank; r++) {
        if (launch_node(r) == launch_node(rank) &&
            !strcmp(launch.gpus[r].bus, launch.gpus[rank].bus))
            return false;
    }
    return true;
}

int launch_gpus(void)
{
    int gpus = 0;
    for (int r = 0; launch.gpus && r < launch_ranks(); r++)
        gpus += is_first_on_gpu(r);
    return gpus;
}
