/* What the MPI library makes of large messages by itself, as a bar for the messages of ranks. For
 * two processes, whose ranks call at the same time; blocking. */
#pragma once
#include <stdint.h>

/* Seconds of one message of `bytes` from process 0 to process 1: half of a ping-pong between them,
 * on average over `repeats`. */
double mpi_peer_one_way_s(void *send, void *receive, int64_t bytes, int repeats);

/* Seconds in which both have sent the other `bytes`. */
double mpi_peer_both_ways_s(void *send, void *receive, int64_t bytes, int repeats);
