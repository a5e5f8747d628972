/* What the simulated device runs on: a machine, described in a text file (profiles/NAME.conf).
 *
 * A line is `key = value  # comment`; every key below is required, once, with the unit that its
 * name ends in. The comments of the shipped files say where each value is from: a datasheet, or the
 * printed figure that it was fitted to. What the figures do to a clock is told in
 * docs/SIMULATION.md.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* A matrix product of m x n x k runs at peak * efficiency * m/(m + m_half) * n/(n + n_half)
 * * k/(k + k_half): at half of its rate where a side is as long as its half length. */
struct profile_rate {
    double peak_flops_per_s;
    double efficiency; /* of large products, 0..1 */
    double half_m, half_n, half_k;
};

struct profile {
    char name[64];
    char description[128];

    /* the device of one rank */
    int64_t memory_bytes;          /* all that it has */
    int64_t reserved_memory_bytes; /* of that, context and libraries: never the schedule's */
    struct profile_rate f32, bf16; /* keys f32_flops_per_s, f32_efficiency, f32_half_m, ... */
    double memory_bytes_per_s;     /* reads and writes together */
    double launch_s;               /* of one kernel, on its stream */

    /* ranks of one node, and their nodes; each figure one direction of one rank */
    int64_t ranks; /* in all: what a run takes that does not say how many */
    int64_t ranks_per_node;
    double link_bytes_per_s, link_latency_s;
    double network_bytes_per_s, network_latency_s; /* between nodes */
    bool link_duplex;                              /* both directions at once at full rate */

    /* the host of one node */
    double h2d_bytes_per_s, d2h_bytes_per_s, host_link_latency_s; /* of one rank */
    bool host_link_duplex;
    int64_t host_memory_bytes;      /* shared by the ranks of a node */
    double host_memory_bytes_per_s; /* shared likewise */
    double host_flops_per_s;        /* of host kernels, shared likewise */
    double host_adamw_params_per_s; /* CPU AdamW, shared likewise */
};

/* Reads a profile: a name looks for profiles/NAME.conf (device/profiles_folder.h says where), what
 * has a '/' or ends in .conf is a file. 0, or -1 with a message naming file, line, key, what was
 * found and what is allowed (unknown names list those there are); `out` is then all zero. */
int profile_read(const char *name_or_file, struct profile *out, char *error, int size);

/* The device memory that a schedule may use: all but what is reserved. */
int64_t profile_device_bytes(const struct profile *profile);
/* A rank's share of its node's host memory. */
int64_t profile_host_bytes(const struct profile *profile);

/* What of a machine varies together when the range of a prediction is asked for. */
enum profile_part {
    PROFILE_ARITHMETIC, /* FLOP/s of the device and of the host, CPU AdamW */
    PROFILE_MEMORY,     /* the device's memory */
    PROFILE_LINKS,      /* between ranks and between nodes */
    PROFILE_HOST,       /* copies to and from the host, its memory */
    PROFILE_PARTS
};
const char *profile_part_name(enum profile_part part); /* "arithmetic", "memory", "links", "host" */

/* The profile with the rates and bandwidths of one part multiplied by `factor`, and its latencies
 * and launches divided. PROFILE_PARTS: of all parts. */
struct profile profile_scaled(const struct profile *profile, enum profile_part part, double factor);
