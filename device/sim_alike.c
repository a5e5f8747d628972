/* The transport of a rank that is alone and stands for all: its own clocks are its partners'. */
#include "device/sim_alike.h"
#include <stdio.h>
#include <string.h>
#include "device/sim_links.h"

/* ---- the transport --------------------------------------------------------------------------- */

/* The state of all its communicators is the one that its group really has, of one rank. */
static bool alike_open(struct comm *comm, struct board *board)
{
    (void)comm;
    (void)board;
    return true;
}

static void alike_close(struct comm *comm)
{
    (void)comm;
}

static bool alike_duplicate(struct comm *parent, struct comm *child)
{
    if (child->size > 1 && comm_member(child, 0) == comm_member(child, 1)) {
        dev_fail(parent->dev, DEV_FAILED,
            "communicator '%s' is split by colors, which a rank that stands for all is not told",
            child->name);
        return false;
    }
    child->state = parent->state;
    return true;
}

static void alike_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct sim *sim = comm->dev->state;
    struct calendar_span spans[DEV_MACHINES_MAX];
    int64_t start_ps[DEV_MACHINES_MAX], through_ps[DEV_MACHINES_MAX][SIM_DIRECTIONS];
    for (int m = 0; m < sim->machines; m++)
        start_ps[m] = sim_ready(&sim->clocks[m], stream->index);
    if (sim_links_book(comm, exchange, start_ps, spans, through_ps)) {
        for (int i = 0; i < exchange->partner_count; i++)
            sim_links_join(comm, exchange, exchange->partners[i], through_ps, spans);
        sim_links_finish(comm, stream, exchange, spans);
    }
    exchange_free(exchange);
}

static int alike_host_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    struct sim *sim = comm->dev->state;
    int64_t latest_ps[DEV_MACHINES_MAX];
    for (int r = 0; bytes && r < comm->size; r++)
        memmove((char *)receive + r * bytes, send, (size_t)bytes);
    for (int m = 0; m < sim->machines; m++)
        latest_ps[m] = sim->clocks[m].host_ps;
    sim_links_gather(comm, latest_ps, bytes);
    return 0;
}

static void alike_abort(struct comm *comm, int rank, enum dev_status status, const char *message)
{
    struct comm *own = comm->state;
    own->transport->abort(own, rank, status, message);
}

static const struct comm_transport transport_alike = {
    .open = alike_open,
    .duplicate = alike_duplicate,
    .close = alike_close,
    .exchange = alike_exchange,
    .host_all_gather = alike_host_all_gather,
    .abort = alike_abort,
};

/* ---- the run --------------------------------------------------------------------------------- */

struct alike {
    int count;
    int (*body)(struct rank *rank, void *context);
    void *context;
};

static int run_body(struct rank *rank, void *context)
{
    const struct alike *alike = context;
    struct comm *comm = comm_open(&transport_alike, NULL, 0, rank->dev);
    if (!comm) {
        dev_fail(rank->dev, DEV_FAILED, "no memory for a communicator");
        return -1;
    }
    comm->size = alike->count;
    comm->state = rank->comm;
    struct rank of_all = {.index = 0, .count = alike->count, .dev = rank->dev, .comm = comm};
    int result = alike->body(&of_all, alike->context);
    if (result < 0)
        dev_fail(rank->dev, DEV_FAILED, "rank 0's body returned %d", result);
    dev_sync(rank->dev);
    comm_close(comm);
    return result;
}

int sim_alike_run(const struct ranks_config *config, int (*body)(struct rank *rank, void *context),
    void *context, struct ranks_failure *failure)
{
    struct alike alike = {config->count, body, context};
    struct ranks_config one = *config;
    if (config->device.kind != DEV_SIM) {
        *failure = (struct ranks_failure){.status = DEV_FAILED};
        snprintf(failure->message, sizeof failure->message,
            "a rank that stands for all is one of the simulated device");
        return -1;
    }
    one.count = 1;
    return ranks_run(&one, run_body, &alike, failure);
}
