/* The ring: bit for bit the reference in the order that it declares, at every rank count, with
 * pieces, one stream, a launch per expert; as many messages as it says; what its memory depends on
 * and what not; and the choice between its modes at the paper's shapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_run.h"
#include "kernels/isa.h"
#include "ops/moe_lend.h"
#include "ops/relay.h"
#include "ops/relay_memory.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

enum { WHY = 512 };

static const int64_t even[8] = {9, 9, 9, 9, 9, 9, 9, 9};
static const int64_t ragged[8] = {5, 0, 11, 1, 0, 8, 2, 3};

static const struct moe_options settings[] = {
    {.hop_rows = 0},
    {.hop_rows = 1, .grouped_off = true},
    {.hop_rows = 4},
    {.overlap_off = true},
    {.grouped_off = true, .overlap_off = true, .hop_rows = 6},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* ---- bits -------------------------------------------------------------------------------------
 */

/* A run against the reference in the declared order; with `like` the bits of that result instead.
 */
static bool holds(const struct moe_case *c, const struct moe_case_run *run,
    const struct moe_case_result *like, struct moe_case_result *got, char *why)
{
    struct moe_case_result want = {0};
    bool good = !moe_case_run(c, run, got, why, WHY) &&
                (like || !moe_case_reference(c, run->impl, &run->options, &want, why, WHY)) &&
                moe_case_equal(c, got, like ? like : &want, run->forward_only, why, WHY);
    moe_case_result_free(&want);
    return good;
}

/* Every setting gives the bits of the first, which are the reference's. */
static bool mode_holds(const struct moe_case *c, const struct moe_impl *impl)
{
    struct moe_case_result first = {0}, got = {0};
    char why[WHY] = "";
    bool good = true;
    for (int i = 0; i < SETTINGS && good; i++) {
        struct moe_case_run run = {
            .impl = impl, .options = settings[i], .keeps_nothing = true, .serial_streams = i == 2};
        good = holds(c, &run, i ? &first : NULL, i ? &got : &first, why);
        moe_case_result_free(&got);
        if (!good)
            tap_note("%s, setting %d: %s", impl->name, i, why);
    }
    moe_case_result_free(&first);
    return good;
}

static const char *const routing_names[] = {"random", "skewed", "one expert", "one rank"};

static void case_holds(const struct moe_shape *shape, const int64_t *tokens, const char *name,
    enum moe_case_routing routing, int empty_every)
{
    struct moe_case c;
    bool good = !moe_case_init(&c, shape, tokens, routing, empty_every, 41);
    good = good && mode_holds(&c, &moe_relay_expert) && mode_holds(&c, &moe_relay_token);
    tap_ok(good, "P=%d k=%d %s %s, %s tokens, %s routing: both modes, %d settings", shape->ranks,
        shape->topk, shape->dtype == DTYPE_BF16 ? "bf16" : "f32",
        shape->activation == MOE_RELU ? "relu" : "swiglu", name, routing_names[routing], SETTINGS);
    moe_case_free(&c);
}

static void matrix(void)
{
    static const int rank_counts[] = {1, 2, 3, 4, 8};
    static const int64_t none[8] = {0};
    for (int i = 0; i < 5; i++)
        for (int type = 0; type < 2; type++) {
            struct moe_shape shape = {.ranks = rank_counts[i],
                .hidden = 12,
                .ffn = 20,
                .experts = rank_counts[i] * (i % 2 ? 3 : 2),
                .topk = i % 2 ? 3 : 2,
                .dtype = (enum dtype)type,
                .activation = type == i % 2 ? MOE_SWIGLU : MOE_RELU};
            case_holds(&shape, ragged, "ragged", ROUTE_SKEWED, 5);
            if (i == 2) {
                shape.activation = MOE_SWIGLU;
                case_holds(&shape, even, "even", ROUTE_ONE_RANK, 0);
                case_holds(&shape, ragged, "ragged", ROUTE_ONE_EXPERT, 3);
                case_holds(&shape, none, "no", ROUTE_RANDOM, 0);
            }
        }
}

static void instruction_sets(void)
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (isa_force((enum isa)isa)) {
            tap_skip("not on this machine", "%s", isa_name((enum isa)isa));
            continue;
        }
        bool good = true;
        for (int type = 0; type < 2; type++) {
            struct moe_shape shape = {.ranks = 3,
                .hidden = 40,
                .ffn = 24,
                .experts = 6,
                .topk = 4,
                .dtype = (enum dtype)type,
                .activation = MOE_SWIGLU};
            struct moe_case c;
            good = good && !moe_case_init(&c, &shape, ragged, ROUTE_SKEWED, 6, 43) &&
                   mode_holds(&c, &moe_relay_expert) && mode_holds(&c, &moe_relay_token);
            moe_case_free(&c);
        }
        tap_ok(good, "both modes, %s", isa_name((enum isa)isa));
    }
}

/* ---- who meets whom ---------------------------------------------------------------------------
 */

static void everything_is_met_once(void)
{
    int faults = 0;
    for (int ranks = 1; ranks <= 64; ranks++) {
        int visits[64][64] = {{0}}, together[64];
        for (int hop = 0; hop < ranks; hop++) {
            memset(together, 0, sizeof together);
            for (int rank = 0; rank < ranks; rank++) {
                int held = relay_held(rank, hop, ranks);
                visits[rank][held]++;
                together[held]++;
                /* what is held now was with the rank before at the last hop */
                int before = (rank + ranks - 1) % ranks;
                faults += hop && held != relay_held(before, hop - 1, ranks);
            }
            for (int part = 0; part < ranks; part++)
                faults += together[part] != 1;
        }
        for (int rank = 0; rank < ranks; rank++)
            for (int part = 0; part < ranks; part++)
                faults += visits[rank][part] != 1;
    }
    tap_ok(faults == 0, "on rings of 1 to 64 every part visits every rank once, always from the "
                        "rank before, and is in one place at a time");
}

/* ---- messages ---------------------------------------------------------------------------------
 */

/* Traffic of a pass, all ranks together; counts of -1 after a failure. */
static struct comm_traffic traffic_of(
    const struct moe_impl *impl, const struct moe_inputs *inputs, bool backward)
{
    static const struct moe_options options = {.hop_rows = 5};
    struct comm_traffic traffic = {-1, -1, -1, -1, -1};
    struct dev_pool *pool = dev_pool_create(2);
    struct ranks_config ranks = {
        .count = inputs->shape.ranks, .device = {.kind = DEV_CPU, .pool = pool}, .timeout_s = 60};
    struct moe_run run = {
        .impl = impl, .options = &options, .inputs = inputs, .backward = backward, .ranks = &ranks};
    struct case_result result;
    if (pool && !case_result_init(&result, ranks.count)) {
        if (!moe_run(&run, &result) && result.has_traffic)
            traffic = result.traffic;
        case_result_free(&result);
    }
    dev_pool_free(pool);
    return traffic;
}

/* Forward, and what backward adds. Payloads are counted for one rank, matrices or arrays each. */
struct counts {
    int64_t forward_exchanges, backward_exchanges, forward_parts, backward_parts;
    int64_t forward_bytes, backward_bytes; /* all ranks */
};

static bool counts_are(
    const struct moe_impl *impl, const struct moe_inputs *inputs, const struct counts *want)
{
    int64_t ranks = inputs->shape.ranks;
    struct comm_traffic f = traffic_of(impl, inputs, false), both = traffic_of(impl, inputs, true);
    bool good = f.exchanges == ranks * want->forward_exchanges &&
                both.exchanges - f.exchanges == ranks * want->backward_exchanges &&
                f.messages == ranks * want->forward_parts &&
                both.messages - f.messages == ranks * want->backward_parts &&
                f.wire_bytes == want->forward_bytes &&
                both.wire_bytes - f.wire_bytes == want->backward_bytes;
    if (!good)
        tap_note("%s, P=%lld: %lld and %lld exchanges, %lld and %lld messages, %lld and %lld bytes",
            impl->name, (long long)ranks, (long long)f.exchanges,
            (long long)(both.exchanges - f.exchanges), (long long)f.messages,
            (long long)(both.messages - f.messages), (long long)f.wire_bytes,
            (long long)(both.wire_bytes - f.wire_bytes));
    return good;
}

static bool messages_at(int ranks)
{
    int64_t tokens[8];
    struct moe_shape shape = {.ranks = ranks,
        .tokens = tokens,
        .hidden = 12,
        .ffn = 8,
        .experts = 4 * ranks,
        .topk = 3,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct moe_routing routing;
    struct moe_inputs inputs;
    char error[256];
    int64_t all_tokens = 0, p = ranks, values = 4 * moe_expert_values(&shape);
    for (int r = 0; r < ranks; r++)
        all_tokens += tokens[r] = 7 + r;
    if (moe_routing_parse(&routing, "uniform", error, sizeof error) ||
        moe_inputs_init(&inputs, &shape, &routing, 3, 0, false))
        return false;
    /* weights are three matrices, gradients too; tokens are X and w, with dY in backward; sums one
     * array, with dw in backward */
    bool ring = ranks > 1;
    struct volume {
        int64_t tokens, sums, tokens_back, sums_back;
    } v = {all_tokens * (2 * 12 + 4 * 3), all_tokens * 4 * 12, all_tokens * (2 * 2 * 12 + 4 * 3),
        all_tokens * (4 * 12 + 4 * 3)};
    struct counts experts = {p - 1, ring ? p + 1 : 0, 3 * (p - 1), ring ? 6 * p : 0,
        p * (p - 1) * values * 2, ring ? p * p * values * (2 + 4) : 0};
    struct counts batches = {ring ? p + 1 : 0, ring ? p + 1 : 0, ring ? (2 + 1) * p : 0,
        ring ? (3 + 2) * p : 0, ring ? p * (v.tokens + v.sums) : 0,
        ring ? p * (v.tokens_back + v.sums_back) : 0};
    bool good = counts_are(&moe_relay_expert, &inputs, &experts) &&
                counts_are(&moe_relay_token, &inputs, &batches);
    moe_inputs_free(&inputs);
    moe_routing_free(&routing);
    return good;
}

static void messages(void)
{
    bool good = true;
    for (int ranks = 1; ranks <= 5; ranks++)
        good = messages_at(ranks) && good;
    tap_ok(good, "P = 1 to 5, experts: P - 1 payloads forward; P of weights and P of gradients "
                 "backward in P + 1 exchanges; tokens: P of tokens and P of sums each way");
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Peaks of rank 0 when all tokens of both ranks have the routes that `expert_of` says. */
static struct moe_peaks peaks_of(const struct moe_impl *impl, const struct moe_options *options,
    int topk, int32_t (*expert_of)(int64_t token, int slot), bool backward)
{
    static const int64_t tokens[2] = {64, 64};
    struct moe_shape shape = {.ranks = 2,
        .tokens = tokens,
        .hidden = 24,
        .ffn = 16,
        .experts = 16,
        .topk = topk,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    int32_t idx[64 * 8];
    const int32_t *both[2] = {idx, idx};
    struct moe_peaks peaks[2] = {{0}};
    for (int64_t t = 0; t < 64; t++)
        for (int j = 0; j < topk; j++)
            idx[t * topk + j] = expert_of(t, j);
    if (impl->expected_bytes(&shape, options, both, backward, peaks))
        peaks[0].all_bytes = -1;
    return peaks[0];
}

static int32_t balanced(int64_t token, int slot)
{
    return (int32_t)((token * 3 + slot * 5) % 16);
}

/* To the experts of rank 0. */
static int32_t one_partition(int64_t token, int slot)
{
    return (int32_t)((token + slot) % 8);
}

static int32_t one_expert(int64_t token, int slot)
{
    (void)token, (void)slot;
    return 3;
}

/* What circulates: two partitions, in backward two FP32 gradients too; two batches and their sums.
 * For experts whatever k, for tokens but 4 k bytes of router weights (and dw) a token; for neither
 * whatever the routing. */
static void what_circulates(void)
{
    static const struct moe_options whole = {.hop_rows = 0};
    const int64_t values = 8 * 3 * 24 * 16, rows = 64 * 24;
    bool good = true;
    for (int backward = 0; backward < 2; backward++)
        for (int k = 1; k <= 8; k *= 2) {
            struct moe_peaks e = peaks_of(&moe_relay_expert, &whole, k, balanced, backward);
            struct moe_peaks s = peaks_of(&moe_relay_expert, &whole, k, one_expert, backward);
            struct moe_peaks t = peaks_of(&moe_relay_token, &whole, k, balanced, backward);
            struct moe_peaks u = peaks_of(&moe_relay_token, &whole, k, one_expert, backward);
            int64_t slots = backward ? 2 : 1; /* of two ranks the other's experts come once */
            int64_t want = slots * values * 2 + backward * 2 * values * 4;
            int64_t batch = rows * (backward ? 4 : 2) + rows * 4 + 64 * k * 4 * (1 + backward);
            good = good && e.set_bytes[LIVE_RING] == want && s.set_bytes[LIVE_RING] == want &&
                   t.set_bytes[LIVE_RING] == 2 * batch && u.set_bytes[LIVE_RING] == 2 * batch;
        }
    tap_ok(good, "what circulates is independent of the routing and, but for the router's own "
                 "values, of k");
}

/* All routes on one partition make one hop as large as the expanded batch; pieces bound it. */
static void skew(void)
{
    struct moe_options whole = {.hop_rows = 0}, cut = {.hop_rows = 32};
    const struct moe_impl *modes[] = {&moe_relay_expert, &moe_relay_token};
    static const int64_t tokens[2] = {64, 64};
    struct moe_shape shape = {.ranks = 2,
        .tokens = tokens,
        .hidden = 24,
        .ffn = 16,
        .experts = 16,
        .topk = 4,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    for (int i = 0; i < 2; i++) {
        int64_t even_rows =
            peaks_of(modes[i], &whole, 4, balanced, false).set_bytes[LIVE_DISPATCH] / 48;
        struct moe_peaks all = peaks_of(modes[i], &whole, 4, one_partition, true);
        struct moe_peaks pieces = peaks_of(modes[i], &cut, 4, one_partition, true);
        int64_t bound = modes[i]->bound_bytes(&shape, &cut, 0, LIVE_DISPATCH, true);
        tap_ok(even_rows == 128 && all.set_bytes[LIVE_DISPATCH] == 256 * 48 &&
                   all.set_bytes[LIVE_EXPERT] == 256 * 2 * (3 * 16 + 24),
            "%s: of k N = 256 routes balanced routing meets 128 in a hop; all on one partition are "
            "one hop of 256 rows, as many as an expanded batch",
            modes[i]->name);
        tap_ok(pieces.set_bytes[LIVE_DISPATCH] == 32 * 48 && bound == 32 * 48,
            "%s: --hop-rows 32 makes that a bound of the launch again", modes[i]->name);
    }
}

/* ---- the choice -------------------------------------------------------------------------------
 */

/* RelayMoE's configurations, micro-batch 12 on 8 ranks: tokens at 20, 40, 65, 98 K. What the
 * printed rule chooses, by hand: T = tokens, E = experts. */
static void printed_rule(void)
{
    static const struct {
        const char *name;
        int64_t hidden, ffn, experts;
        int topk;
        const char *printed;
    } rows[] = {{"E64", 2048, 768, 64, 8, "EEEE"}, {"E128", 2048, 768, 128, 8, "TEEE"},
        {"E384", 2048, 768, 384, 8, "TTTE"}, {"H512", 2048, 512, 128, 8, "EEEE"},
        {"H2048", 2048, 2048, 128, 8, "TTEE"}, {"E384-K12", 2048, 2048, 384, 12, "TTTT"},
        {"E384-K16", 2048, 2048, 384, 16, "TTTT"}};
    static const int64_t sequence[4] = {20480, 40960, 65536, 98304};
    int good = 0, differ = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int s = 0; s < 4; s++) {
            int64_t tokens[8];
            for (int r = 0; r < 8; r++)
                tokens[r] = 12 * sequence[s] / 8;
            struct moe_shape shape = {.ranks = 8,
                .tokens = tokens,
                .hidden = rows[i].hidden,
                .ffn = rows[i].ffn,
                .experts = rows[i].experts,
                .topk = rows[i].topk,
                .dtype = DTYPE_BF16};
            struct relay_volume printed = relay_volume(&shape, MOE_VOLUME_PRINTED);
            struct relay_volume true_one = relay_volume(&shape, MOE_VOLUME_TRUE);
            bool moves = relay_moves_tokens(&printed);
            good += moves == (rows[i].printed[s] == 'T');
            differ += moves != relay_moves_tokens(&true_one);
        }
    tap_ok(good == 28, "the printed rule chooses as counted by hand at 28 shapes of the paper");
    tap_ok(differ > 0, "what travels would choose otherwise at %d of them", differ);
}

static void choice_is_one_of_the_modes(void)
{
    struct moe_shape shape = {
        .ranks = 2, .hidden = 12, .ffn = 8, .experts = 4, .topk = 2, .activation = MOE_SWIGLU};
    static const int64_t few[2] = {3, 3}, many[2] = {90, 90};
    char why[WHY] = "";
    bool good = true;
    for (int i = 0; i < 2; i++) {
        struct moe_case c;
        struct moe_case_result mode = {0}, chosen = {0};
        good = good && !moe_case_init(&c, &shape, i ? many : few, ROUTE_RANDOM, 0, 3);
        struct moe_case_run run = {.impl = i ? &moe_relay_expert : &moe_relay_token};
        good = good && holds(&c, &run, NULL, &mode, why);
        run.impl = &moe_relay;
        good = good && holds(&c, &run, &mode, &chosen, why);
        moe_case_result_free(&mode);
        moe_case_result_free(&chosen);
        moe_case_free(&c);
    }
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "relay is relay-token with few tokens, relay-expert with many");
}

int main(void)
{
    matrix();
    everything_is_met_once();
    messages();
    what_circulates();
    skew();
    printed_rule();
    choice_is_one_of_the_modes();
    instruction_sets();
    return tap_done();
}
