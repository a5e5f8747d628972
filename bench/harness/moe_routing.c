/* The routings of the dispatch program.
 *
 * The paper's are formulas. The others are draws by integer weights (bench/harness/moe_urn.h), so
 * each stress workload is a list of weights and nothing in it depends on a machine's arithmetic. */
#include "bench/harness/moe_routing.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_urn.h"
#include "bench/harness/units.h"
#include "probe/seed.h"

/* Streams under the seed, apart from those of the problem's tensors. */
#define STREAM_STEP 0x73746570u
#define STREAM_EMPTY 0x656d7074u
#define STREAM_WEIGHT 0x77656967u

#define ZIPF_MOST 16.0

/* ---- the text of --routing ---------------------------------------------------------------------
 */

static const struct {
    const char *name;
    enum moe_profile profile;
} named_profiles[] = {{"balanced", MOE_BALANCED}, {"uniform", MOE_UNIFORM},
    {"hot-expert", MOE_HOT_EXPERT}, {"hot-rank", MOE_HOT_RANK}, {"spread-hot", MOE_SPREAD_HOT},
    {"ragged-sources", MOE_RAGGED_SOURCES}, {"idle-rank", MOE_IDLE_RANK},
    {"idle-experts", MOE_IDLE_EXPERTS}, {"moving-hot-spot", MOE_MOVING_HOT_SPOT},
    {"burst", MOE_BURST}, {"duplicates", MOE_DUPLICATES}, {"empty-slots", MOE_EMPTY_SLOTS}};

#define NAMED_COUNT ((int)(sizeof named_profiles / sizeof *named_profiles))

const char *moe_routing_name(enum moe_profile profile)
{
    for (int i = 0; i < NAMED_COUNT; i++)
        if (named_profiles[i].profile == profile)
            return named_profiles[i].name;
    return NULL;
}

static int refuse_name(const char *text, char *error, int size)
{
    int at = snprintf(error, (size_t)size, "got '%s', allowed", text);
    for (int i = 0; i < NAMED_COUNT && at < size; i++)
        at += snprintf(error + at, (size_t)(size - at), " %s,", named_profiles[i].name);
    if (at < size)
        snprintf(error + at, (size_t)(size - at),
            " R/H (R percent of tokens into H experts), zipf:S, FILE.npy, counts:FILE.npy, or a "
            "folder of rank_0.npy, ...");
    return -1;
}

/* R/H: two whole numbers and nothing else. */
static bool is_hot_tokens(const char *text)
{
    size_t left = strspn(text, "0123456789");
    size_t right = text[left] == '/' ? strspn(text + left + 1, "0123456789") : 0;
    return left && right && text[left + 1 + right] == 0;
}

static int parse_hot_tokens(struct moe_routing *routing, const char *text, char *error, int size)
{
    int64_t percent, experts;
    const char *slash = strchr(text, '/');
    if (units_parse_count(text, (int)(slash - text), &percent) || percent > 100 ||
        units_parse_count(slash + 1, -1, &experts) || experts < 1) {
        snprintf(
            error, (size_t)size, "got '%s', allowed R/H with R in 0..100 and H at least 1", text);
        return -1;
    }
    routing->profile = MOE_HOT_TOKENS;
    routing->hot_percent = (int)percent;
    routing->hot_experts = experts;
    return 0;
}

static int parse_zipf(struct moe_routing *routing, const char *text, char *error, int size)
{
    double exponent;
    if (units_parse_real(text + 5, -1, &exponent) || exponent < 0 || exponent > ZIPF_MOST) {
        snprintf(error, (size_t)size, "got '%s', allowed zipf:S with S in 0..%g", text, ZIPF_MOST);
        return -1;
    }
    routing->profile = MOE_ZIPF;
    routing->zipf_exponent = exponent;
    return 0;
}

int moe_routing_parse(struct moe_routing *routing, const char *text, char *error, int size)
{
    *routing = (struct moe_routing){0};
    for (int i = 0; i < NAMED_COUNT; i++)
        if (!strcmp(text, named_profiles[i].name)) {
            routing->profile = named_profiles[i].profile;
            return 0;
        }
    if (is_hot_tokens(text))
        return parse_hot_tokens(routing, text, error, size);
    if (!strncmp(text, "zipf:", 5))
        return parse_zipf(routing, text, error, size);
    if (!moe_trace_named(text))
        return refuse_name(text, error, size);
    routing->profile = MOE_TRACE;
    return moe_trace_read(&routing->trace, text, error, size);
}

void moe_routing_free(struct moe_routing *routing)
{
    moe_trace_free(&routing->trace);
    *routing = (struct moe_routing){0};
}

/* ---- what a shape must be ----------------------------------------------------------------------
 */

bool moe_routing_is_paper(const struct moe_routing *routing)
{
    return routing->profile == MOE_BALANCED || routing->profile == MOE_HOT_TOKENS;
}

int moe_routing_topk(const struct moe_routing *routing)
{
    return routing->profile == MOE_TRACE ? routing->trace.topk : 0;
}

int64_t moe_routing_steps(const struct moe_routing *routing)
{
    return routing->profile == MOE_TRACE ? routing->trace.steps * routing->trace.layers : 0;
}

/* The rank that a workload singles out. */
static int singled_out(int ranks)
{
    return ranks / 2;
}

int moe_routing_tokens(const struct moe_routing *routing, int ranks, int topk, const int64_t *asked,
    int64_t *tokens, char *error, int size)
{
    if (routing->profile == MOE_TRACE)
        return moe_trace_tokens(&routing->trace, ranks, topk, tokens, error, size);
    for (int r = 0; r < ranks; r++) {
        tokens[r] = asked[r];
        if (routing->profile == MOE_RAGGED_SOURCES)
            tokens[r] = asked[r] * (2 * r + 1) / ranks;
        if (routing->profile == MOE_IDLE_RANK && r == singled_out(ranks))
            tokens[r] = 0;
    }
    return 0;
}

int moe_routing_check(
    const struct moe_routing *routing, const struct moe_shape *shape, char *error, int size)
{
    if (routing->profile == MOE_TRACE) {
        if (routing->trace.topk && routing->trace.topk != shape->topk) {
            snprintf(error, (size_t)size, "%s: top-k is %d there and %d here",
                routing->trace.path[0], routing->trace.topk, shape->topk);
            return -1;
        }
        return moe_trace_check(&routing->trace, shape->experts, error, size);
    }
    if (routing->profile == MOE_HOT_TOKENS && routing->hot_experts >= shape->experts) {
        snprintf(error, (size_t)size,
            "got %d/%lld with %lld experts, allowed are at most %lld hot ones",
            routing->hot_percent, (long long)routing->hot_experts, (long long)shape->experts,
            (long long)shape->experts - 1);
        return -1;
    }
    return 0;
}

/* ---- the paper's routings ----------------------------------------------------------------------
 */

static void fill_balanced(const struct moe_shape *shape, int64_t tokens, int32_t *idx)
{
    for (int64_t i = 0; i < tokens; i++)
        for (int j = 0; j < shape->topk; j++)
            *idx++ = (int32_t)((i + j) % shape->experts);
}

static void fill_hot_tokens(
    const struct moe_routing *routing, const struct moe_shape *shape, int64_t tokens, int32_t *idx)
{
    int64_t hot = tokens * routing->hot_percent / 100, into = routing->hot_experts;
    for (int64_t i = 0; i < tokens; i++)
        for (int j = 0; j < shape->topk; j++)
            *idx++ = (int32_t)(i < hot ? j % into : into + (i + j) % (shape->experts - into));
}

/* ---- drawn routings ----------------------------------------------------------------------------
 */

/* 2^40 (e + 1)^-S, at least 1, in the arithmetic that is the same on every machine. */
static int64_t zipf_weight(double exponent, int64_t expert)
{
    float share = arith_exp((float)-exponent * arith_log((float)(expert + 1)));
    int64_t weight = (int64_t)((double)share * 0x1p40);
    return weight > 1 ? weight : 1;
}

static int64_t weight_of(
    const struct moe_routing *routing, const struct moe_shape *shape, int64_t step, int64_t expert)
{
    int64_t owned = moe_experts_per_rank(shape);
    int owner = moe_owner(shape, expert);
    bool single = owner == singled_out(shape->ranks);
    switch (routing->profile) {
    case MOE_ZIPF:
        return zipf_weight(routing->zipf_exponent, expert);
    case MOE_HOT_RANK:
        return single;
    case MOE_SPREAD_HOT:
        return expert % owned == 0 && owned > 1 ? 8 * (owned - 1) : 1;
    case MOE_IDLE_EXPERTS:
        return !single;
    case MOE_MOVING_HOT_SPOT: /* against (ranks - 1) * owned experts of weight 1 */
        return owner == step % shape->ranks && shape->ranks > 1 ? 3 * (shape->ranks - 1) : 1;
    default:
        return 1;
    }
}

/* What is drawn from: `urn`, and `burst` for the tokens [burst_first, burst_last) of a rank. */
struct drawing {
    const struct moe_routing *routing;
    const struct moe_shape *shape;
    uint64_t seed;       /* of the step */
    int64_t first_token; /* of the rank, over all ranks */
    struct moe_urn urn, burst;
    int64_t burst_first, burst_last;
    struct moe_named named;
};

static void drawing_close(struct drawing *drawing)
{
    moe_urn_free(&drawing->urn);
    moe_urn_free(&drawing->burst);
    free(drawing->named.experts);
}

static int fill_urns(struct drawing *drawing, int64_t step, int64_t *weights)
{
    const struct moe_shape *shape = drawing->shape;
    for (int64_t e = 0; e < shape->experts; e++)
        weights[e] = weight_of(drawing->routing, shape, step, e);
    if (moe_urn_init(&drawing->urn, shape->experts, weights))
        return -1;
    for (int64_t e = 0; e < shape->experts; e++)
        weights[e] = moe_owner(shape, e) == singled_out(shape->ranks);
    return moe_urn_init(&drawing->burst, shape->experts, weights);
}

static int drawing_open(struct drawing *drawing, int64_t step, int rank)
{
    const struct moe_shape *shape = drawing->shape;
    int64_t *weights = malloc((size_t)shape->experts * sizeof *weights);
    drawing->named.experts = malloc((size_t)shape->topk * sizeof *drawing->named.experts);
    for (int r = 0; r < rank; r++)
        drawing->first_token += shape->tokens[r];
    if (drawing->routing->profile == MOE_BURST) {
        drawing->burst_first = shape->tokens[rank] * 3 / 8;
        drawing->burst_last = shape->tokens[rank] * 5 / 8;
    }
    int status = weights && drawing->named.experts ? fill_urns(drawing, step, weights) : -1;
    free(weights);
    if (status)
        drawing_close(drawing);
    return status;
}

static void draw_token(struct drawing *drawing, int64_t token, int32_t *idx)
{
    bool in_burst = token >= drawing->burst_first && token < drawing->burst_last;
    const struct moe_urn *urn = in_burst ? &drawing->burst : &drawing->urn;
    int64_t route = (drawing->first_token + token) * drawing->shape->topk;
    int slot = 0;
    drawing->named = (struct moe_named){.experts = drawing->named.experts};
    if (drawing->routing->profile == MOE_HOT_EXPERT) {
        idx[slot] = (int32_t)(drawing->shape->experts / 2);
        moe_urn_name(urn, &drawing->named, idx[slot++]);
    }
    for (; slot < drawing->shape->topk; slot++)
        idx[slot] = (int32_t)moe_urn_draw(urn, &drawing->named, drawing->seed, route + slot);
}

/* What is done to a token after its draw. */
static void alter_token(const struct drawing *drawing, int64_t token, int32_t *idx)
{
    int topk = drawing->shape->topk;
    int64_t number = drawing->first_token + token;
    for (int j = 0; j < topk; j++) {
        if (drawing->routing->profile == MOE_DUPLICATES)
            idx[j] = idx[0];
        if (drawing->routing->profile == MOE_EMPTY_SLOTS &&
            (number % 8 == 7 || seed_index(drawing->seed, STREAM_EMPTY, number * topk + j, 4) == 0))
            idx[j] = MOE_EMPTY;
    }
}

/* Every step has a seed of its own. */
static uint64_t step_seed(uint64_t seed, int64_t step)
{
    return seed_bits(seed, STREAM_STEP, step);
}

static int fill_drawn(const struct moe_routing *routing, const struct moe_shape *shape,
    uint64_t seed, int64_t step, int rank, int32_t *idx)
{
    struct drawing drawing = {.routing = routing, .shape = shape, .seed = step_seed(seed, step)};
    if (drawing_open(&drawing, step, rank))
        return -1;
    for (int64_t token = 0; token < shape->tokens[rank]; token++, idx += shape->topk) {
        draw_token(&drawing, token, idx);
        alter_token(&drawing, token, idx);
    }
    drawing_close(&drawing);
    return 0;
}

/* ---- what the program asks for -----------------------------------------------------------------
 */

int moe_routing_fill(const struct moe_routing *routing, const struct moe_shape *shape,
    uint64_t seed, int64_t step, int rank, int32_t *idx)
{
    int64_t tokens = shape->tokens[rank];
    switch (routing->profile) {
    case MOE_BALANCED:
        fill_balanced(shape, tokens, idx);
        return 0;
    case MOE_HOT_TOKENS:
        fill_hot_tokens(routing, shape, tokens, idx);
        return 0;
    case MOE_TRACE:
        return moe_trace_fill(&routing->trace, step, rank, tokens, shape->topk, idx);
    default:
        return fill_drawn(routing, shape, seed, step, rank, idx);
    }
}

void moe_routing_weights(const struct moe_routing *routing, const struct moe_shape *shape,
    uint64_t seed, int64_t step, int rank, bool integers, float *weights)
{
    int64_t first = 0, routes = shape->tokens[rank] * shape->topk;
    float mean = 1.0f / (float)shape->topk;
    uint64_t own = step_seed(seed, step);
    for (int r = 0; r < rank; r++)
        first += shape->tokens[r] * shape->topk;
    for (int64_t i = 0; i < routes; i++) {
        if (integers)
            weights[i] = (float)(1 + seed_index(own, STREAM_WEIGHT, first + i, 2));
        else if (moe_routing_is_paper(routing))
            weights[i] = mean;
        else
            weights[i] = mean + seed_f32(own, STREAM_WEIGHT, first + i, 0.5f * mean);
    }
}
