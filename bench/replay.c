/* replay - what plans and chunks make of a routing, by arithmetic: nothing is moved, no device
 *
 *   replay --ranks 8 --tokens 65536 --experts 128 --topk 8 --routing balanced,95/16,50/4
 *       --chunk-budget 6554 --max-chunks 10 --chunks strided,contiguous
 *   replay --ranks 8 --experts 128 --routing trace.npy --plan none,llep --chunk-budget 4K
 *   replay --ranks 8 --experts 128 --topk 8 --routing counts:counts.npy
 *
 * Every line is one routing under one plan and one partition into chunks, with the planner, the
 * chunks and the positions that bin/dispatch uses. Of a routing of many steps a line shows the
 * worst step, the one in which a rank receives the largest share of what Eq. 1 allows, and the line
 * below it how that share is spread over the steps. --help has every option and column. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_replay.h"
#include "bench/harness/moe_routing.h"
#include "bench/harness/options.h"
#include "bench/harness/replay_line.h"
#include "bench/harness/writable.h"
#include "probe/record.h"

static const char description[] =
    "K          chunks: min(ceil(N / c), max-chunks), N the most tokens of a rank (Eq. 1)\n"
    "c_eff      ceil(N / K), tokens of the largest chunk\n"
    "owned      busiest rank's routes over the mean, every expert at home\n"
    "computed   the same under the plan\n"
    "excess     routes of the busiest rank beyond the plan's soft capacity, alpha x the mean\n"
    "lent       experts that the plan lends, once for every rank that borrows one\n"
    "send       over chunks and senders: most rows to one rank / mean rows to a rank\n"
    "received   over chunks and receivers: most rows received / P k c_eff, the bound of Eq. 1\n"
    "\n"
    "A trace is FILE.npy ([N, k], [P, N, k], [step, P, N, k] or [step, layer, P, N, k] of int32\n"
    "or int64, -1 = empty slot), a folder of rank_0.npy, ... or counts:FILE.npy ([..., P, E]); it\n"
    "brings tokens, top-k and steps. docs/TRACES.md tells how to write one.\n";

static const char examples[] =
    "  replay --ranks 8 --tokens 64K --experts 128 --topk 8 --routing 80/16 --chunk-budget 6554\n"
    "  replay --ranks 8 --experts 128 --routing trace.npy --plan none,llep --chunk-budget 4K\n"
    "  replay --ranks 16 --experts 128 --topk 8 --routing counts:counts.npy --csv\n";

static const char exit_codes[] = "0 all lines printed; 2 bad option or trace; 3 memory is short\n";

/* ---- a case ------------------------------------------------------------------------------------
 */

#define ERROR_SIZE 700
#define LOAD_SIZE 160

struct program_state {
    struct replay_line line;
    struct options *options;
    char *text; /* of the routing that is held */
    struct moe_routing routing;
    int64_t tokens[MOE_RANKS_MAX];
    char loads[2 * LOAD_SIZE]; /* that were printed last */
};

/* Consecutive cases share a trace, which may be large. */
static int hold_routing(struct program_state *p)
{
    char error[ERROR_SIZE];
    if (p->text && !strcmp(p->text, p->line.routing))
        return -1;
    moe_routing_free(&p->routing);
    free(p->text);
    p->text = strdup(p->line.routing);
    if (!p->text)
        return EXIT_ENVIRONMENT;
    if (moe_routing_parse(&p->routing, p->line.routing, error, sizeof error))
        return options_refuse(p->options, "routing", "%s", error);
    return -1;
}

static int current_topk(const struct program_state *p)
{
    int own = moe_routing_topk(&p->routing);
    if (p->line.topk > 0)
        return (int)p->line.topk;
    return own ? own : 8;
}

static struct moe_shape current_shape(const struct program_state *p)
{
    return (struct moe_shape){.ranks = (int)p->line.ranks,
        .tokens = p->tokens,
        .experts = p->line.experts,
        .topk = current_topk(p)};
}

static int64_t current_steps(const struct program_state *p)
{
    int64_t own = moe_routing_steps(&p->routing);
    if (p->line.steps > 0)
        return p->line.steps;
    return own ? own : 1;
}

static int check_sizes(const struct program_state *p, const struct moe_shape *shape)
{
    int64_t own = moe_routing_steps(&p->routing);
    if (own && p->line.steps > own)
        return options_refuse(p->options, "steps", "got %" PRId64 ", allowed %" PRId64 " (%s)",
            p->line.steps, own, p->line.routing);
    for (int r = 0; r < shape->ranks; r++)
        if (shape->tokens[r] * shape->topk > INT32_MAX)
            return options_refuse(p->options, "tokens",
                "rank %d has %" PRId64 " routes, allowed at most %d", r,
                shape->tokens[r] * shape->topk, INT32_MAX);
    return -1;
}

/* A trace brings its own tokens. */
static int check_trace(const struct program_state *p)
{
    static const char *const names[] = {"tokens", "tokens-per-rank"};
    for (int i = 0; i < 2; i++)
        if (options_given(p->options, names[i]))
            return options_refuse(p->options, names[i],
                "has no effect on %s: a trace brings its own tokens", p->line.routing);
    return -1;
}

/* Sets the case's tokens; -1 when it can run, else the status to end with. */
static int prepare_case(struct program_state *p)
{
    const struct option_counts *uneven = &p->line.tokens_per_rank;
    char error[ERROR_SIZE];
    int ranks = (int)p->line.ranks, status = hold_routing(p);
    if (status >= 0)
        return status;
    if (p->line.experts % ranks)
        return options_refuse(p->options, "experts",
            "got %" PRId64 ", allowed multiples of %d (--ranks)", p->line.experts, ranks);
    if (uneven->count && uneven->count != ranks)
        return options_refuse(p->options, "tokens-per-rank", "got %d counts, allowed %d (--ranks)",
            uneven->count, ranks);
    for (int r = 0; r < ranks; r++)
        p->tokens[r] = uneven->count ? uneven->values[r] : p->line.tokens;
    if (p->routing.profile == MOE_TRACE)
        status = check_trace(p);
    if (status >= 0)
        return status;
    if (moe_routing_tokens(
            &p->routing, ranks, current_topk(p), p->tokens, p->tokens, error, sizeof error))
        return options_refuse(p->options, "routing", "%s", error);
    struct moe_shape shape = current_shape(p);
    if (moe_routing_check(&p->routing, &shape, error, sizeof error))
        return options_refuse(p->options, "routing", "%s", error);
    return check_sizes(p, &shape);
}

/* ---- running -----------------------------------------------------------------------------------
 */

struct outcome {
    int64_t steps, worst_step;
    struct moe_replay worst;
    double median_share, p95_share;
};

/* All ranks' indices at one step, rank after rank. */
static int fill_step(const struct program_state *p, const struct moe_shape *shape, int64_t step,
    int32_t *all, const int32_t **idx)
{
    for (int r = 0; r < shape->ranks; r++) {
        if (moe_routing_fill(&p->routing, shape, (uint64_t)p->line.seed, step, r, all))
            return -1;
        idx[r] = all;
        all += shape->tokens[r] * shape->topk;
    }
    return 0;
}

static struct moe_options current_options(const struct program_state *p)
{
    return (struct moe_options){.chunk_budget = p->line.chunk_budget,
        .max_chunks = p->line.max_chunks,
        .chunks = (enum moe_chunks)p->line.chunks,
        .alpha = p->line.alpha,
        .lambda = p->line.lambda,
        .min_gemm_tokens = p->line.min_gemm_tokens};
}

/* Shares are kept as received rows: the bound is the same at every step. */
static int replay_steps(const struct program_state *p, const struct moe_shape *shape, int32_t *all,
    int64_t *received, struct outcome *outcome)
{
    const int32_t *idx[MOE_RANKS_MAX];
    struct moe_options options = current_options(p);
    struct moe_load spread;
    for (int64_t step = 0; step < outcome->steps; step++) {
        struct moe_replay replay;
        if (fill_step(p, shape, step, all, idx) ||
            moe_replay(&replay, shape, &options, p->line.plan == REPLAY_PLAN_LLEP, idx))
            return -1;
        received[step] = replay.received;
        if (step == 0 || replay.received > outcome->worst.received) {
            outcome->worst = replay;
            outcome->worst_step = step;
        }
    }
    if (moe_load_of(&spread, received, outcome->steps))
        return -1;
    double bound = (double)shape->ranks * shape->topk * (double)outcome->worst.chunk_tokens;
    outcome->median_share = bound > 0 ? (double)spread.median / bound : 0;
    outcome->p95_share = bound > 0 ? (double)spread.p95 / bound : 0;
    return 0;
}

static int run_case(const struct program_state *p, struct outcome *outcome)
{
    struct moe_shape shape = current_shape(p);
    int64_t routes = 0;
    for (int r = 0; r < shape.ranks; r++)
        routes += shape.tokens[r] * shape.topk;
    *outcome = (struct outcome){.steps = current_steps(p)};
    int32_t *all = malloc((size_t)routes * sizeof *all + 1);
    int64_t *received = malloc((size_t)outcome->steps * sizeof *received);
    int status = all && received ? replay_steps(p, &shape, all, received, outcome) : -1;
    free(all);
    free(received);
    return status;
}

/* ---- printing ----------------------------------------------------------------------------------
 */

static int64_t most_tokens(const struct program_state *p)
{
    int64_t most = 0;
    for (int r = 0; r < p->line.ranks; r++)
        most = p->tokens[r] > most ? p->tokens[r] : most;
    return most;
}

static void print_csv(struct program_state *p, const struct outcome *o, bool first)
{
    const struct moe_replay *r = &o->worst;
    if (first)
        puts("routing,ranks,tokens,experts,topk,plan,chunks,chunk_budget,max_chunks,alpha,min_gemm,"
             "lambda,chunk_count,chunk_tokens,steps,worst_step,owned_ratio,computed_ratio,"
             "capacity_routes,excess_routes,experts_lent,send_ratio,received_rows,received_share,"
             "received_share_median,received_share_p95,rank_min,rank_median,rank_p95,rank_max,"
             "expert_min,expert_median,expert_p95,expert_max");
    printf("%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%d,%s,%s,%" PRId64 ",%" PRId64 ",%g,%" PRId64
           ",%g,",
        p->line.routing, p->line.ranks, most_tokens(p), p->line.experts, current_topk(p),
        replay_plan_names[p->line.plan], replay_chunks_names[p->line.chunks], p->line.chunk_budget,
        p->line.max_chunks, p->line.alpha, p->line.min_gemm_tokens, p->line.lambda);
    printf("%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%.6f,%.6f,%" PRId64 ",%" PRId64
           ",%" PRId64 ",%.6f,%" PRId64 ",%.6f,%.6f,%.6f,",
        r->chunks, r->chunk_tokens, o->steps, o->worst_step, moe_load_imbalance(&r->rank),
        moe_load_imbalance(&r->computed), r->capacity, r->excess, r->transfers, r->send_ratio,
        r->received, r->received_share, o->median_share, o->p95_share);
    printf("%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
           ",%" PRId64 "\n",
        r->rank.min, r->rank.median, r->rank.p95, r->rank.max, r->expert.min, r->expert.median,
        r->expert.p95, r->expert.max);
}

static void print_steps(const struct program_state *p, const struct outcome *o)
{
    int64_t layers = p->routing.profile == MOE_TRACE ? p->routing.trace.layers : 1;
    printf("    %" PRId64 " steps: received median %.1f%%, p95 %.1f%%; the worst is step %" PRId64,
        o->steps, 100 * o->median_share, 100 * o->p95_share, o->worst_step / layers);
    if (layers > 1)
        printf(", layer %" PRId64, o->worst_step % layers);
    putchar('\n');
}

/* The loads of this line's routing, unless they stand above already. */
static void print_loads(struct program_state *p, const struct moe_replay *r)
{
    char rank[LOAD_SIZE], expert[LOAD_SIZE], loads[2 * LOAD_SIZE];
    moe_load_text(&r->rank, rank, sizeof rank);
    moe_load_text(&r->expert, expert, sizeof expert);
    snprintf(loads, sizeof loads, "%.110s; of an expert: %.110s", rank, expert);
    if (strcmp(loads, p->loads) != 0)
        printf("    routes of a rank: %s\n", loads);
    memcpy(p->loads, loads, sizeof loads);
}

/* Settings of the plan and the chunks that differ between lines and have no column. */
static void print_settings(const struct program_state *p)
{
    char value[64];
    for (int i = 0; i < options_count(p->options); i++) {
        const char *name = options_at(p->options, i)->name;
        bool of_llep = replay_is_of_llep(name);
        bool of_chunks = !strcmp(name, "chunk-budget") || !strcmp(name, "max-chunks");
        if (!options_varies(p->options, i) || !(of_chunks || of_llep) ||
            (of_llep && p->line.plan == REPLAY_PLAN_NONE))
            continue;
        options_text(p->options, i, value, sizeof value);
        printf("  %s %s", name, value);
    }
    putchar('\n');
}

/* There is none without a plan. */
static const char *excess_text(
    const struct program_state *p, const struct moe_replay *r, char *text, size_t size)
{
    snprintf(text, size, p->line.plan == REPLAY_PLAN_NONE ? "-" : "%" PRId64, r->excess);
    return text;
}

static void print_line(struct program_state *p, const struct outcome *o, bool first)
{
    const struct moe_replay *r = &o->worst;
    char excess[32];
    if (first)
        printf("%-24s %5s %8s %7s %4s %5s %-10s %4s %8s %6s %8s %8s %4s %6s %8s\n", "routing",
            "ranks", "tokens", "experts", "topk", "plan", "chunks", "K", "c_eff", "owned",
            "computed", "excess", "lent", "send", "received");
    printf("%-24s %5" PRId64 " %8" PRId64 " %7" PRId64 " %4d %5s %-10s %4" PRId64 " %8" PRId64
           " %6.2f %8.2f %8s %4" PRId64 " %6.2f %7.1f%%",
        p->line.routing, p->line.ranks, most_tokens(p), p->line.experts, current_topk(p),
        replay_plan_names[p->line.plan], replay_chunks_names[p->line.chunks], r->chunks,
        r->chunk_tokens, moe_load_imbalance(&r->rank), moe_load_imbalance(&r->computed),
        excess_text(p, r, excess, sizeof excess), r->transfers, r->send_ratio,
        100 * r->received_share);
    print_settings(p);
    print_loads(p, r);
    if (o->steps > 1)
        print_steps(p, o);
}

/* Appends the line's record: op replay, the plan as its implementation. */
static int record_line(const struct program_state *p, const struct outcome *o)
{
    const struct moe_replay *r = &o->worst;
    const struct {
        const char *name;
        double value;
    } figures[] = {{"chunk_count", (double)r->chunks}, {"chunk_tokens", (double)r->chunk_tokens},
        {"owned_ratio", moe_load_imbalance(&r->rank)},
        {"computed_ratio", moe_load_imbalance(&r->computed)}, {"excess_routes", (double)r->excess},
        {"experts_lent", (double)r->transfers}, {"send_ratio", r->send_ratio},
        {"received_rows", (double)r->received}, {"received_share", r->received_share}};
    char path[64], error[ERROR_SIZE] = "memory is short";
    json_t *record = rec_create();
    if (record) {
        rec_str(record, "op", "replay");
        rec_str(record, "impl", replay_plan_names[p->line.plan]);
        rec_str(record, "device", "none");
        options_record(p->options, record);
        rec_str(record, "status", "ok");
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
            snprintf(path, sizeof path, "figures.%s", figures[i].name);
            rec_real(record, path, figures[i].value);
        }
    }
    int status = record ? rec_append(p->line.json, record, error, sizeof error) : -1;
    json_decref(record);
    if (status)
        fprintf(stderr, "replay: %s\n", error);
    return status ? EXIT_ENVIRONMENT : -1;
}

/* Every case can run, and every option has an effect on one of them. */
static int check_all(struct program_state *p)
{
    bool llep = false, budget = false;
    int status = -1;
    for (options_rewind(p->options); status < 0 && options_next(p->options);) {
        status = prepare_case(p);
        llep |= p->line.plan == REPLAY_PLAN_LLEP;
        budget |= p->line.chunk_budget > 0;
    }
    for (int i = 0; status < 0 && !llep && i < options_count(p->options); i++) {
        const char *name = options_at(p->options, i)->name;
        if (replay_is_of_llep(name) && options_given(p->options, name))
            status = options_refuse(p->options, name, "has no effect without --plan llep");
    }
    if (status < 0 && !budget && options_given(p->options, "max-chunks"))
        status = options_refuse(p->options, "max-chunks", "has no effect without --chunk-budget");
    if (status < 0)
        status = writable_check(p->options, "json", p->line.json);
    return status;
}

/* Without a plan its settings change nothing: only their first values are met. */
static bool repeats(const struct program_state *p, int *position)
{
    options_position(p->options, position);
    for (int i = 0; i < options_count(p->options); i++)
        if (replay_is_of_llep(options_at(p->options, i)->name) && position[i] > 0)
            return p->line.plan == REPLAY_PLAN_NONE;
    return false;
}

static int run_cases(struct program_state *p, int *position)
{
    int status = -1;
    bool first = true;
    for (options_rewind(p->options); status < 0 && options_next(p->options);) {
        struct outcome outcome;
        if (repeats(p, position))
            continue;
        status = prepare_case(p);
        if (status < 0 && run_case(p, &outcome)) {
            fputs("replay: memory is short\n", stderr);
            status = EXIT_ENVIRONMENT;
        }
        if (status < 0)
            (p->line.csv ? print_csv : print_line)(p, &outcome, first);
        if (status < 0 && p->line.json)
            status = record_line(p, &outcome);
        first = false;
    }
    if (status < 0 && (fflush(stdout) || ferror(stdout))) {
        fputs("replay: the output could not be written\n", stderr);
        status = EXIT_ENVIRONMENT;
    }
    return status < 0 ? EXIT_OK : status;
}

static int run_all(struct program_state *p)
{
    int status = check_all(p);
    int *position = calloc((size_t)options_count(p->options), sizeof *position);
    if (status < 0 && !position)
        status = EXIT_ENVIRONMENT;
    if (status < 0)
        status = run_cases(p, position);
    free(position);
    return status;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    const struct option_group groups[] = {
        replay_routing_group(&p.line), replay_plan_group(&p.line)};
    const struct program program = {.name = "replay",
        .summary = "what plans and chunks make of a routing, by arithmetic alone",
        .description = description,
        .examples = examples,
        .exit_codes = exit_codes,
        .groups = groups,
        .group_count = 2};
    int status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = run_all(&p);
    moe_routing_free(&p.routing);
    free(p.text);
    options_free(p.options);
    return status;
}
