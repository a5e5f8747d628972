/* The search for a launch's degrees and budgets: of all that fit, how fast is each?
 *
 * A step's parts hardly touch each other: attention and the exchange of heads follow from D, the
 * dispatch from E_p and c, what is done once a step from P, the optimizer from its buckets. So the
 * simulated step is run once for each value of one part with one or two layers, and a candidate's
 * time is put together from the parts:
 *
 *     T = once(D, P) + L layer(D, E_p, c) + kept(D) boundaries on the device + optimizer(E_p, beta)
 *         + what attention spares that is kept, by layer and option (ops/model_keep.h)
 *
 * Memory is the budget of ops/model_memory.c itself, of every candidate. Whoever uses the result
 * runs the winner's whole step (plan_search_whole), which is the judge of the sum. */
#pragma once
#include "bench/harness/plan_launch.h"
#include "bench/harness/step_time.h"
#include "ops/model_keep.h"

enum plan_part {
    PLAN_ATTENTION,      /* kernels and the exchange of heads, of all layers */
    PLAN_EXPERTS,        /* what else layers do: projections, dispatch, experts, their gradients */
    PLAN_ONCE,           /* embedding, vocabulary projection, loss */
    PLAN_KEPT,           /* what boundaries on the device spare: not positive */
    PLAN_KEPT_ATTENTION, /* what attention that is not computed again spares, likewise */
    PLAN_OPTIMIZER,
    PLAN_PARTS
};
const char *plan_part_name(enum plan_part part);

/* The values of each coordinate; an option that is given has one. */
#define PLAN_VALUES_MAX 24
struct plan_values {
    int64_t value[PLAN_VALUES_MAX];
    int count;
};

struct plan_candidate {
    struct plan_line line;                    /* degrees and budgets filled in */
    int place, experts, vocab, chunk, bucket; /* indices of its values */
    int64_t device_bytes, host_bytes;         /* by the verdict that was asked for */
    int64_t host_boundaries;                  /* of 2 L */
    int64_t kept[MODEL_KEEP_OPTIONS];         /* layers by what they keep of attention */
    bool fits, timed;
    double part_s[PLAN_PARTS], seconds;
};

struct plan_search {
    const struct plan *plan;
    struct plan_values group, sequences; /* of each place: D, and sequences of a group */
    struct plan_values experts, vocab, chunk, bucket;
    struct plan_candidate *candidate; /* owned */
    int64_t count, fitting;
    int64_t steps; /* simulated */
    int64_t best;  /* index; -1 = nothing fits */
    /* What is known of the parts; NaN = not yet. [place][...] */
    double once_s[PLAN_VALUES_MAX][PLAN_VALUES_MAX];
    double layer_s[PLAN_VALUES_MAX][PLAN_VALUES_MAX][PLAN_VALUES_MAX];
    double attention_s[PLAN_VALUES_MAX], kept_s[PLAN_VALUES_MAX];
    double kept_attention_s[PLAN_VALUES_MAX][MODEL_KEEP_OPTIONS]; /* of a layer */
    double optimizer_s[PLAN_VALUES_MAX][PLAN_VALUES_MAX];
    double base_optimizer_s[PLAN_VALUES_MAX][2]; /* of one and two layers */
    char error[256];
};

/* Looks at every candidate of the plan's current case and times those that fit. 0, or -1 with
 * search->error; plan_search_free in either case. */
int plan_search_run(struct plan_search *search, const struct plan *plan);
void plan_search_free(struct plan_search *search);

/* Times one that does not fit too. 0, or -1 with search->error. */
int plan_search_time(struct plan_search *search, struct plan_candidate *candidate);

/* Tokens of a rank, and a second's per rank. */
int64_t plan_candidate_tokens(const struct plan_search *search, const struct plan_candidate *c);
double plan_candidate_rate(const struct plan_search *search, const struct plan_candidate *c);

/* The candidate's step with all its layers, on several machines. 0, or -1 with search->error. */
int plan_search_whole(struct plan_search *search, const struct plan_candidate *candidate,
    const struct profile *machines, int count, struct step_time *out);

/* What is not given, and so is searched: "D+B+c". */
const char *plan_search_free_names(const struct plan *p, char *text, int size);
