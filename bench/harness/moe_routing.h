/* Routing of the dispatch problem: which experts every token names, and with which weight.
 *
 * idx of any rank is a pure function of (routing, shape, seed, step, rank): no rank needs
 * another's. Tokens have a number over all ranks, token i of rank r being the i-th after those of
 * the lower ranks; what is drawn depends on that number and the slot.
 *
 *   balanced         slot j of a rank's token i names expert (i + j) mod E
 *   R/H              the first floor(R N / 100) tokens of a rank name expert j mod H, token i of
 * the others H + (i + j) mod (E - H): "R percent of tokens into H experts". With H < k a token
 * names an expert in several slots uniform          k different experts, all alike zipf:S k
 * different experts, expert e with weight (e + 1)^-S
 *
 *   hot-expert       every token names expert E/2 in slot 0; the other slots are uniform
 *   hot-rank         every route goes to the experts of one rank
 *   spread-hot       the first expert of every rank weighs as much as eight times all its others:
 *                    ranks alike, experts not
 *   ragged-sources   rank r holds (2r + 1)/P of the tokens asked for; uniform
 *   idle-rank        one rank holds no tokens; uniform
 *   idle-experts     the experts of one rank get no route; uniform over the others
 *   moving-hot-spot  three quarters of the draws go to one rank's experts, another rank's every
 * step burst            the middle quarter of every rank's tokens goes to one rank's experts: what
 * a contiguous chunk meets all at once; the others are uniform duplicates       every token names
 * one expert in all of its slots empty-slots      a quarter of the slots, at random, and every
 * eighth token hold nothing; uniform
 *
 *   FILE.npy, DIR, counts:FILE.npy     a trace (docs/TRACES.md)
 *
 * "One rank" is rank P/2 unless said; "k different experts" are drawn one slot after the other in
 * proportion to the weights of the experts that the token does not name yet. Where there are none
 * left (k > E/P in hot-rank) a token names experts again. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/moe_trace.h"
#include "ops/moe.h"

enum moe_profile {
    MOE_BALANCED,
    MOE_HOT_TOKENS, /* R/H */
    MOE_UNIFORM,
    MOE_ZIPF,
    MOE_HOT_EXPERT,
    MOE_HOT_RANK,
    MOE_SPREAD_HOT,
    MOE_RAGGED_SOURCES,
    MOE_IDLE_RANK,
    MOE_IDLE_EXPERTS,
    MOE_MOVING_HOT_SPOT,
    MOE_BURST,
    MOE_DUPLICATES,
    MOE_EMPTY_SLOTS,
    MOE_TRACE
};

/* The eight stress workloads, for tests that go through all of them. */
#define MOE_STRESS_FIRST MOE_HOT_EXPERT
#define MOE_STRESS_LAST MOE_BURST

struct moe_routing {
    enum moe_profile profile;
    int hot_percent;      /* R/H */
    int64_t hot_experts;  /* R/H */
    double zipf_exponent; /* zipf:S */
    struct moe_trace trace;
};

/* The name of a profile without parameters; NULL of the others. */
const char *moe_routing_name(enum moe_profile profile);

/* Reads the text of --routing, a trace's files included; moe_routing_free in any case. 0, or -1
 * with `error` saying what was given and what is allowed. */
int moe_routing_parse(struct moe_routing *routing, const char *text, char *error, int size);
void moe_routing_free(struct moe_routing *routing);

/* Is this routing the paper's own, with weights of 1/k and all ranks alike? */
bool moe_routing_is_paper(const struct moe_routing *routing);

/* Tokens of each rank, given those asked for ([ranks] each; may be the same array). A trace brings
 * its own and does not look at `asked`; of counts they depend on topk. 0, or -1 with `error` when a
 * trace is of another number of ranks. */
int moe_routing_tokens(const struct moe_routing *routing, int ranks, int topk, const int64_t *asked,
    int64_t *tokens, char *error, int size);

/* k of a trace, 0 = any (every other routing, and a trace of counts). */
int moe_routing_topk(const struct moe_routing *routing);

/* How many different steps there are: a trace's steps times layers, step by step; 0 = as many as
 * anybody wants. */
int64_t moe_routing_steps(const struct moe_routing *routing);

/* Does this routing suit the shape (tokens as moe_routing_tokens gave them)? Every entry of a trace
 * is looked at. 0, or -1 with `error` naming what was found (of a trace the first bad entry by its
 * coordinates) and what is allowed. */
int moe_routing_check(
    const struct moe_routing *routing, const struct moe_shape *shape, char *error, int size);

/* idx [N_rank, k] of one rank at one step, for a shape that passed the check. 0, or -1 when memory
 * is short. */
int moe_routing_fill(const struct moe_routing *routing, const struct moe_shape *shape,
    uint64_t seed, int64_t step, int rank, int32_t *idx);

/* Router weights [N_rank, k]: 1/k with the paper's routings, else uniform in [1/2k, 3/2k), both
 * FP32; with `integers` 1 or 2 whatever the routing. Empty slots have one too, which means nothing.
 */
void moe_routing_weights(const struct moe_routing *routing, const struct moe_shape *shape,
    uint64_t seed, int64_t step, int rank, bool integers, float *weights);
