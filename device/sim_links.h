/* What the two transports of the simulated device share: sim_comm.c, whose ranks meet, and
 * sim_alike.c, where one rank stands for all. */
#pragma once
#include "device/sim.h"
#include "device/transport.h"

/* Directions of a rank's links, in the order of the engines from SIM_LINK_OUT on: out, then in. */
enum { SIM_DIRECTION_LINK = 0, SIM_DIRECTION_NETWORK = 2, SIM_DIRECTIONS = 4 };

/* Whether a peer is on this rank's node. */
bool sim_same_node(const struct comm *comm, const struct profile *profile, int peer);

/* Books this rank's links from start_ps[machine] on. spans[machine]: from the start to the end of
 * its own part; through_ps[machine]: when each direction is done, 0 where it is not used. False,
 * the device failed, when memory is short. */
bool sim_links_book(struct comm *comm, const struct exchange *exchange, const int64_t *start_ps,
    struct calendar_span *spans, int64_t (*through_ps)[SIM_DIRECTIONS]);

/* Moves each machine's end to when the partner's links are through, whose times are through_ps, as
 * far as the messages between the two use them. */
void sim_links_join(const struct comm *comm, const struct exchange *exchange, int partner,
    const int64_t (*through_ps)[SIM_DIRECTIONS], struct calendar_span *spans);

/* The stream's clocks stand at the ends of the spans. */
void sim_links_finish(const struct comm *comm, struct stream *stream,
    const struct exchange *exchange, const struct calendar_span *spans);

/* A gather of the hosts, of which the last comes at latest_ps[machine]. */
void sim_links_gather(struct comm *comm, const int64_t *latest_ps, int64_t bytes);
