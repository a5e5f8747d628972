/* The offloaded-optimizer problem and its implementations.
 *
 * A rank holds its share of the parameters, Θ/W of Θ, in named tensors: FP32 master p and moments m
 * and v, a gradient, and the BF16 working weights that the model computes with. One step is
 *
 *     sum    = sum of squares of the gradient as given, FP64, in kernels/gradient_scan.h's order
 *     norm   = scale sqrt(sum)                  over all ranks, sums added in rank order
 *     factor = FP32 of scale, or of scale clip / norm when clip > 0 and norm > clip
 *
 * and for each element, every operation rounded to FP32 (docs/ARITHMETIC.md, rule 9)
 *
 *     g = gradient factor
 *     m = fma(b1, m, c1 g)                      c1 = 1 - b1
 *     v = fma(b2, v, c2 (g g))                  c2 = 1 - b2
 *     p = fma(-step, m / fma(sqrt(v), rs, eps), p decay)
 *     w = BF16 of p
 *
 * with step = lr / (1 - b1^t), rs = 1 / sqrt(1 - b2^t), decay = 1 - lr wd in FP64, rounded once.
 *
 * The powers are taken in FP64 by squaring from t's lowest bit up, so they do not depend on a
 * library; t counts from 1 and has 64 bits. Two groups of tensors, with and without weight decay,
 * each have their own hyperparameters.
 *
 * A gradient that is not finite leaves everything as it was, t included, and is reported.
 *
 * Each element of the result depends on its own inputs and the step's constants alone, so there is
 * one order and nothing to declare: every implementation must give the reference's bits, for every
 * bucket size, number of slots and order of buckets. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/comm.h"
#include "kernels/adamw.h"
#include "kernels/gradient_scan.h"
#include "ops/adamw_plan.h"

enum adamw_gradients {
    ADAMW_HOST_F32,   /* pinned host memory */
    ADAMW_DEVICE_BF16 /* device memory */
};

enum adamw_nonfinite {
    ADAMW_REFUSE,   /* scan every gradient before anything is written */
    ADAMW_PROPAGATE /* no scan: infinities and NaN go where the arithmetic takes them */
};

struct adamw_hyper {
    double lr, b1, b2, eps, wd;
};

struct adamw_options {
    int64_t bucket;     /* parameters of a bucket; 0 = default */
    bool whole_tensors; /* buckets of whole tensors, closed once they hold `bucket` */
    int slots;          /* offload-stream: staging slots; 0 = default */
    enum adamw_gradients gradients;
    double scale; /* of the gradient, such as 1 / loss scale; > 0 */
    double clip;  /* largest global norm; 0 = no clipping */
    enum adamw_nonfinite nonfinite;
    struct adamw_hyper hyper[ADAMW_GROUPS];
};

#define ADAMW_BUCKET_DEFAULT (INT64_C(256) * 1024)
#define ADAMW_SLOTS_DEFAULT 2
#define ADAMW_SLOTS_MAX 16
#define ADAMW_STATE_BYTES INT64_C(12) /* of one parameter: p, m, v */

/* What the last step found. */
struct adamw_report {
    double norm;          /* over all ranks; NaN when nothing was scanned */
    double factor;        /* what every gradient was multiplied by, before its rounding to FP32 */
    int64_t nonfinite;    /* elements, over all ranks */
    int64_t first_tensor; /* of this rank, the first with such an element; -1 = none */
    bool skipped;         /* nothing was written */
};

struct adamw_impl;

/* One rank's part. The caller fills the first two groups and, before each step, the gradient. */
struct adamw {
    struct adamw_shape shape;
    struct adamw_options options;

    struct device *dev;
    struct comm *comm; /* NULL = one rank alone */

    /* the caller's, [shape.params] in the shape's flat order */
    uint16_t *weights;     /* device */
    const void *gradients; /* host FP32 (pinned) or device BF16 */

    /* adamw_open's */
    const struct adamw_impl *impl;
    struct adamw_plan plan;
    float *p, *m,
        *v;    /* [shape.params]: pinned host memory, or the device's where the state lives there */
    int64_t t; /* steps taken */
    struct adamw_report report;
    struct adamw_scan *scan;
    struct adamw_constants constants[ADAMW_GROUPS]; /* of the step that has begun */
    int64_t *ready;                                 /* buckets declared ready, in that order */
    bool *is_ready;                                 /* [plan.buckets] */
    int64_t ready_count;
    bool begun;
    void *state; /* the implementation's own */
};

struct adamw_impl {
    const char *name, *summary;
    bool state_on_device;           /* p, m, v are device memory */
    bool takes_bucket, takes_slots; /* which options have an effect */
    /* Allocates what the implementation keeps from step to step. */
    void (*open)(struct adamw *);
    /* Enqueues one bucket's update, which may start after `ready`. */
    void (*update_bucket)(struct adamw *, const struct adamw_bucket *, struct event ready);
    /* What the main stream does from now on comes after every bucket. NULL = it does anyway. */
    void (*finish)(struct adamw *);
    /* NULL = nothing to free. */
    void (*close)(struct adamw *);
    /* Bytes of one live set (< 0: of all together) that are live from adamw_open on, over the
     * caller's weights and gradients: on the device, and in pinned host memory. Known from the
     * problem alone and equal to the measured peak to the byte. `plan` is the plan for these
     * options. */
    int64_t (*expected_bytes)(const struct adamw_shape *, const struct adamw_options *,
        const struct adamw_plan *plan, int live_set);
    int64_t (*expected_host_bytes)(const struct adamw_shape *, const struct adamw_options *,
        const struct adamw_plan *plan, int live_set);
    /* What the device may hold, without knowing the plan; expected <= bound. NULL = unbounded: it
     * grows with the parameters. */
    int64_t (*bound_bytes)(const struct adamw_shape *, const struct adamw_options *);
};

extern const struct adamw_impl adamw_device, adamw_cpu_offload, adamw_staged, adamw_offload_stream;

/* NULL-terminated, in the order of --list; the family's baseline comes first. */
extern const struct adamw_impl *const adamw_impls[];

/* 0, or -1 with a message naming the option, what was found and what is allowed. */
int adamw_check_options(const struct adamw_options *options, char *error, int size);

/* The options with the defaults filled in, and the bucket size that this implementation works with:
 * one that takes none gets each group in one piece. */
struct adamw_options adamw_resolve(const struct adamw_impl *impl, const struct adamw_shape *shape,
    const struct adamw_options *options);

/* Builds the plan and allocates the state, filled with unspecified values, and all staging: what is
 * live afterwards is live until adamw_close and nothing is allocated in between. adamw_close must
 * follow even after a failure. */
enum dev_status adamw_open(struct adamw *a, const struct adamw_impl *impl);
void adamw_close(struct adamw *a);

/* ---- state: blocking, not part of any step ------------------------------------------------- */

enum adamw_array { ADAMW_P, ADAMW_M, ADAMW_V, ADAMW_ARRAYS };

void adamw_write_state(
    struct adamw *a, enum adamw_array array, int64_t first, int64_t count, const float *values);
void adamw_read_state(
    struct adamw *a, enum adamw_array array, int64_t first, int64_t count, float *values);

/* ---- a step -----------------------------------------------------------------------------------
 *
 * In one piece, with every gradient final on the main stream: */
enum dev_status adamw_step(struct adamw *a);

/* Or bucket by bucket while backward is still running: begin, then each bucket of the plan once, in
 * any order, with an event after which its gradients are final, then finish. The bits do not depend
 * on the order.
 *
 * With ADAMW_PROPAGATE and no clipping nothing about a bucket's update depends on the others, and
 * it is enqueued at once. Otherwise the norm and the check need every gradient: readiness is only
 * noted, and adamw_finish enqueues the scan, waits for its verdict, and enqueues the buckets in the
 * order in which they became ready.
 *
 * A bucket that the plan does not have, one that was ready before, one that never was, or a call
 * out of turn makes the device fail with a message. After finish, work on the main stream sees the
 * new weights; with ADAMW_REFUSE or clipping, finish has waited for the device, and a->report is
 * filled.
 *
 * adamw_begin takes a->options as they are: learning rates, scale and clip may change between
 * steps; the bucket size, slots and the place of the gradients may not. */
enum dev_status adamw_begin(struct adamw *a);
enum dev_status adamw_bucket_ready(struct adamw *a, int64_t bucket, struct event gradients_final);
enum dev_status adamw_finish(struct adamw *a);

/* Whether buckets may start before all gradients are known. */
bool adamw_starts_early(const struct adamw_options *options);

/* ---- shared by implementations ------------------------------------------------------------- */

/* The constants of step t. */
struct adamw_constants adamw_constants_at(
    const struct adamw_hyper *hyper, int64_t t, double factor);

/* What the kernel needs for a bucket whose arrays are given: constants of its group and the step.
 */
struct adamw_args adamw_bucket_args(const struct adamw *a, const struct adamw_bucket *bucket,
    float *p, float *m, float *v, const void *g, enum dtype g_type, uint16_t *w);

/* Where a bucket's gradients begin. */
const void *adamw_gradient_at(const struct adamw *a, int64_t first);

static inline enum dtype adamw_gradient_dtype(enum adamw_gradients gradients)
{
    return gradients == ADAMW_DEVICE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Bytes that a bucket's parameter takes in a staging slot: 16, or 12 with its gradient on the
 * device. */
int64_t adamw_slot_bytes(enum adamw_gradients gradients);

/* The scan's workspace: on the device when the gradients are there, and on the host. Constants; 0
 * when the options need no scan. */
int64_t adamw_scan_device_bytes(const struct adamw_options *options);
int64_t adamw_scan_host_bytes(const struct adamw_options *options);

/* For expected_bytes: one of [LIVE_SET_COUNT], or with live_set < 0 their sum. What is allocated by
 * adamw_open stays, so the sets peak together. */
int64_t adamw_sum_sets(const int64_t *set_bytes, int live_set);
