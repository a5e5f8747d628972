/* A group of ranks: threads of this process, all of them or, where a launcher has started several
 * processes, its share of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "device/backend.h"
#include "device/board.h"
#include "device/launch.h"

#define RANKS_MAX 1024

struct ranks {
    const struct ranks_config *config;
    struct dev_config device;
    struct group *group;
    struct board *board;
    int first, local; /* the ranks that are threads of this process */
    int (*body)(struct rank *rank, void *context);
    void *context;
};

struct rank_thread {
    struct ranks *ranks;
    int index;
    pthread_t thread;
};

/* Opens the rank's device and communicator. False when the group has failed, because of this rank
 * or another. */
static bool open_rank(struct ranks *ranks, struct rank *rank)
{
    struct dev_config config = ranks->device;
    char error[256];
    config.rank = rank->index;
    enum dev_status status = dev_open(&config, &rank->dev, error, sizeof error);
    if (status != DEV_OK) {
        group_abort(ranks->group, rank->index, status, error);
        return false;
    }
    const struct comm_transport *transport = rank->dev->backend->transport;
    if (launch_transport() && !transport->spans_processes)
        transport = launch_transport();
    rank->comm = comm_open(transport, ranks->board, rank->index, rank->dev);
    if (!rank->comm) {
        bool known = dev_status(rank->dev) != DEV_OK;
        group_abort(ranks->group, rank->index, known ? dev_status(rank->dev) : DEV_FAILED,
            known ? dev_message(rank->dev) : "no memory for a communicator");
        return false;
    }
    group_join(ranks->group, rank->index, rank->dev);
    return comm_barrier(rank->comm) == 0;
}

static void *rank_main(void *argument)
{
    struct rank_thread *self = argument;
    struct ranks *ranks = self->ranks;
    struct rank rank = {.index = self->index, .count = ranks->config->count};
    if (open_rank(ranks, &rank)) {
        int result = ranks->body(&rank, ranks->context);
        if (result < 0)
            dev_fail(rank.dev, DEV_FAILED, "rank %d's body returned %d", rank.index, result);
    }
    if (rank.dev)
        dev_sync(rank.dev);
    launch_leave(rank.index - ranks->first);
    group_leave(ranks->group, rank.index);
    /* Until all have left others may read its memory or fail its device. */
    group_wait_all_left(ranks->group);
    comm_close(rank.comm);
    dev_close(rank.dev);
    return NULL;
}

/* Runs the ranks of this process. 0, or -1 when the group has failed. */
static int run_all(struct ranks *ranks, struct rank_thread *threads, struct ranks_failure *failure)
{
    int count = ranks->local, started = 0;
    launch_begin_group(ranks->group, ranks->device.pool, ranks->config->timeout_s);
    for (; started < count; started++) {
        threads[started].ranks = ranks;
        threads[started].index = ranks->first + started;
        if (pthread_create(&threads[started].thread, NULL, rank_main, &threads[started]))
            break;
    }
    if (started < count)
        group_abort(ranks->group, ranks->first + started, DEV_FAILED,
            "no thread for a rank: the system's limit of threads or mappings; use fewer ranks");
    for (int i = started; i < count; i++)
        group_leave(ranks->group, ranks->first + i);
    group_wait_left(ranks->group, count);
    int result = launch_finish_group(ranks->group, failure);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i].thread, NULL);
    return result;
}

static int refuse(struct ranks_failure *failure, const char *message)
{
    failure->status = DEV_FAILED;
    failure->rank = 0;
    snprintf(failure->message, sizeof failure->message, "%s", message);
    return -1;
}

static int run_group(struct ranks *ranks, struct ranks_failure *failure)
{
    struct rank_thread *threads = calloc((size_t)ranks->local, sizeof *threads);
    ranks->group = group_create(ranks->config);
    ranks->board = ranks->group ? board_create(ranks->group) : NULL;
    int result = -1;
    if (threads && ranks->board)
        result = run_all(ranks, threads, failure);
    else
        refuse(failure, "no memory for the ranks");
    board_free(ranks->board);
    group_free(ranks->group);
    free(threads);
    return result;
}

int ranks_run(const struct ranks_config *config, int (*body)(struct rank *rank, void *context),
    void *context, struct ranks_failure *failure)
{
    struct ranks ranks = {
        .config = config, .device = config->device, .body = body, .context = context};
    char message[128];
    *failure = (struct ranks_failure){.status = DEV_OK};
    if (config->count < 1 || config->count > RANKS_MAX) {
        snprintf(message, sizeof message, "%d ranks; allowed: 1 to %d", config->count, RANKS_MAX);
        return refuse(failure, message);
    }
    if (config->message_bytes_per_s > 0 && config->device.kind != DEV_CPU)
        return refuse(failure, "paced messages are for ranks on the cpu device");
    if (launch_started() && config->count != launch_ranks()) {
        snprintf(message, sizeof message, "%d ranks; allowed: %d, %d in each of %d processes",
            config->count, launch_ranks(), launch_ranks_per_process(), launch_processes());
        return refuse(failure, message);
    }
    if (launch_started() && (config->device.kind == DEV_SIM || config->message_bytes_per_s > 0))
        return refuse(failure,
            "processes hold ranks of the cpu and the cuda device, whose messages have no pace");
    ranks.local = launch_started() ? launch_ranks_per_process() : config->count;
    ranks.first = launch_started() ? launch_process() * ranks.local : 0;
    struct dev_pool *own_pool = config->device.pool ? NULL : dev_pool_create(launch_cpus());
    if (own_pool)
        ranks.device.pool = own_pool;
    if (!ranks.device.pool)
        return refuse(failure, "no threads for kernels");
    int share = dev_pool_threads(ranks.device.pool) / ranks.local;
    if (!ranks.device.kernel_threads)
        ranks.device.kernel_threads = share > 1 ? share : 1;
    int result = run_group(&ranks, failure);
    dev_pool_free(own_pool);
    return result;
}
