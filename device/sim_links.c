/* An exchange's part of a rank's links, whoever says when its partners come and are through. */
#include "device/sim_links.h"
#include <string.h>

static struct sim *sim_of(const struct comm *comm)
{
    return comm->dev->state;
}

bool sim_same_node(const struct comm *comm, const struct profile *profile, int peer)
{
    return comm_member(comm, comm->rank) / profile->ranks_per_node ==
           comm_member(comm, peer) / profile->ranks_per_node;
}

static void add_bytes(const struct comm *comm, const struct profile *profile,
    const struct comm_part *part, bool out, struct sim_message_bytes *bytes)
{
    if (part->peer == comm->rank)
        bytes->own += out ? part->bytes : 0;
    else if (sim_same_node(comm, profile, part->peer))
        *(out ? &bytes->link_out : &bytes->link_in) += part->bytes;
    else
        *(out ? &bytes->network_out : &bytes->network_in) += part->bytes;
}

static struct sim_message_bytes count_bytes(
    const struct comm *comm, const struct profile *profile, const struct exchange *exchange)
{
    struct sim_message_bytes bytes = {0};
    for (int i = 0; i < exchange->sends; i++)
        add_bytes(comm, profile, &exchange->send[i], true, &bytes);
    for (int i = 0; i < exchange->receives; i++)
        add_bytes(comm, profile, &exchange->receive[i], false, &bytes);
    return bytes;
}

bool sim_links_book(struct comm *comm, const struct exchange *exchange, const int64_t *start_ps,
    struct calendar_span *spans, int64_t (*through_ps)[SIM_DIRECTIONS])
{
    struct sim *sim = sim_of(comm);
    struct sim_message_bytes bytes = {0};
    for (int m = 0; m < sim->machines; m++) {
        struct sim_clock *clock = &sim->clocks[m];
        int64_t ends_ps[SIM_ENGINES];
        if (m == 0 || clock->profile.ranks_per_node != sim->clocks[m - 1].profile.ranks_per_node)
            bytes = count_bytes(comm, &clock->profile, exchange);
        struct sim_work work = sim_message_work(&clock->profile, &bytes);
        if (!sim_book(clock, start_ps[m], &work, &spans[m], ends_ps)) {
            dev_fail(comm->dev, DEV_FAILED, "no memory for the links of rank %d", comm->rank);
            return false;
        }
        memcpy(through_ps[m], &ends_ps[SIM_LINK_OUT], sizeof through_ps[m]);
    }
    return true;
}

void sim_links_join(const struct comm *comm, const struct exchange *exchange, int partner,
    const int64_t (*through_ps)[SIM_DIRECTIONS], struct calendar_span *spans)
{
    const struct sim *sim = sim_of(comm);
    int first;
    bool receives = exchange_parts(exchange->receive, exchange->receives, partner, &first);
    bool sends = exchange_parts(exchange->send, exchange->sends, partner, &first);
    for (int m = 0; m < sim->machines; m++) {
        bool near = sim_same_node(comm, &sim->clocks[m].profile, partner);
        const int64_t *ends_ps = &through_ps[m][near ? SIM_DIRECTION_LINK : SIM_DIRECTION_NETWORK];
        if (receives && ends_ps[0] > spans[m].end_ps)
            spans[m].end_ps = ends_ps[0];
        if (sends && ends_ps[1] > spans[m].end_ps)
            spans[m].end_ps = ends_ps[1];
    }
}

void sim_links_finish(const struct comm *comm, struct stream *stream,
    const struct exchange *exchange, const struct calendar_span *spans)
{
    const struct sim *sim = sim_of(comm);
    int64_t end_ps[DEV_MACHINES_MAX];
    for (int m = 0; m < sim->machines; m++)
        end_ps[m] = spans[m].end_ps;
    sim_trace(stream, TRACE_MESSAGE, exchange->label, spans[0]);
    sim_finish(stream, end_ps);
}

void sim_links_gather(struct comm *comm, const int64_t *latest_ps, int64_t bytes)
{
    struct sim *sim = sim_of(comm);
    for (int m = 0; m < sim->machines; m++) {
        const struct profile *profile = &sim->clocks[m].profile;
        bool far = false;
        for (int r = 0; r < comm->size; r++)
            far |= !sim_same_node(comm, profile, r);
        sim_host_joins(
            &sim->clocks[m], latest_ps[m] + sim_gather_ps(profile, comm->size, far, bytes));
    }
}
