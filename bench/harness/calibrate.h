/* What a machine's profile is measured from, on its cpu device: measured by every rank at once, as
 * a schedule's ranks run, through the same calls as a schedule makes. */
#pragma once
#include <stdint.h>
#include "device/profile.h"
#include "kernels/gemm.h"

struct calibrate_config {
    int ranks;      /* that measure at once, 1 .. CALIBRATE_RANKS_MAX */
    int threads;    /* that run kernels, all ranks together */
    int64_t rounds; /* samples of each figure; the least disturbed counts */
};
#define CALIBRATE_RANKS_MAX 256
#define CALIBRATE_ROUNDS_MAX 1000

/* One size of matrix product, and the seconds of one launch without what a launch itself takes. */
struct calibrate_product {
    enum gemm_layout layout;
    int64_t m, n, k;
    double seconds;
};
#define CALIBRATE_PRODUCTS 30 /* 3 layouts, each side in turn short */

/* Of one rank while all ranks do the same, unless said otherwise. A time is the slowest rank's, and
 * the least of the rounds'. */
struct calibrate_figures {
    struct calibrate_product f32[CALIBRATE_PRODUCTS], bf16[CALIBRATE_PRODUCTS];
    double ranks_at_once; /* rate of all ranks over that of one alone, of a large FP32 product */
    double launch_s;      /* a kernel queued behind another */
    double hand_off_s;    /* a kernel that waits for another stream's */
    /* Read and written: a sum of two arrays beyond the caches, of two within them; a copy. */
    double memory_bytes_per_s, cached_bytes_per_s, copy_bytes_per_s;
    double h2d_bytes_per_s, d2h_bytes_per_s; /* one direction at a time */
    double host_link_latency_s;              /* of a copy of 64 bytes, either way */
    double host_link_both;                   /* time of both directions at once over one alone */
    /* Of a ring step, every rank sending and receiving. One rank alone: 0. */
    double link_bytes_per_s, link_latency_s;
    double link_both;          /* its time over that of one direction alone */
    double adamw_params_per_s; /* of all ranks together */
};

/* Measures. 0, or -1 and `error` says why. Takes seconds. */
int calibrate_measure(
    const struct calibrate_config *config, struct calibrate_figures *out, char *error, int size);

/* How far a fit is from what it was fitted to: |predicted / measured - 1|. */
struct calibrate_error {
    double median, worst;
};

/* The rate of profile.h that the products' times follow most closely, by least squares of the
 * logarithms. The peak is the fastest product's rate, or the fitted rate of endless ones where that
 * is higher. */
struct calibrate_error calibrate_fit(
    const struct calibrate_product *products, int count, struct profile_rate *out);

/* The machine's profile: of `figures`, and of what the machine says of its memory, which the
 * device's and the host's half share. */
struct profile calibrate_profile(const struct calibrate_config *config,
    const struct calibrate_figures *figures, struct calibrate_error *f32,
    struct calibrate_error *bf16);

/* Writes it to a file that profile_read reads, every line with how its value came about. 0, or -1
 * with errno. */
int calibrate_write(const char *path, const struct calibrate_config *config,
    const struct calibrate_figures *figures, const struct profile *profile,
    const struct calibrate_error *f32, const struct calibrate_error *bf16);
