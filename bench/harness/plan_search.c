/* Enumerating candidates, and putting their times together from simulated parts. */
#include "bench/harness/plan_search.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The reference of every part is at the first value of the other coordinates. */
enum { FIRST = 0 };

/* Tokens of a chunk, parameters of a bucket, tokens of a rank. */
enum {
    CHUNK_LEAST = 1024,
    CHUNK_MOST = 65536,
    BUCKET_LEAST = 25000000,
    BUCKET_MOST = 400000000,
    TOKENS_MOST = 1 << 18,
    UNEVEN_SHARE = 16 /* of the device */
};

const char *plan_part_name(enum plan_part part)
{
    static const char *const names[PLAN_PARTS] = {"attention", "experts and projections",
        "vocabulary and embedding", "boundaries kept", "attention kept", "optimizer"};
    return names[part];
}

/* ---- values ---------------------------------------------------------------------------------- */

static void add_value(struct plan_values *values, int64_t value)
{
    if (values->count < PLAN_VALUES_MAX)
        values->value[values->count++] = value;
}

/* Degrees, the largest first: divisors of the ranks and of what they split, such that every rank of
 * a block has as many of it on its node. */
static void add_degrees(
    struct plan_values *values, const struct plan *p, int64_t splits, bool given, int64_t value)
{
    int64_t ranks = p->line.gpus;
    if (given)
        add_value(values, value);
    for (int64_t d = ranks; !given && d >= 1; d--)
        if (ranks % d == 0 && splits % d == 0 && plan_degree_is_even(p, d))
            add_value(values, d);
}

static void add_places(struct plan_search *s)
{
    const struct plan *p = s->plan;
    struct plan_values groups = {0};
    bool given = options_given(p->options, "sequences");
    int64_t heads = p->list.width[MODEL_WIDTH_HEADS], context = p->line.context;
    add_degrees(
        &groups, p, heads, options_given(p->options, "sequence-group"), p->line.sequence_group);
    for (int i = 0; i < groups.count; i++) {
        if (context % groups.value[i])
            continue;
        add_value(&s->group, groups.value[i]);
        add_value(&s->sequences, p->line.sequences);
    }
    /* With D > 1 half of D has as many tokens as twice the sequences, and less to exchange. */
    for (int64_t b = 2; !given && groups.value[groups.count - 1] == 1 && b * context <= TOKENS_MOST;
         b *= 2) {
        add_value(&s->group, 1);
        add_value(&s->sequences, b);
    }
}

static void list_values(struct plan_search *s)
{
    const struct plan *p = s->plan;
    const struct plan_line *line = &p->line;
    int64_t experts = p->list.width[MODEL_WIDTH_EXPERTS], ranks = line->gpus;
    add_places(s);
    add_degrees(&s->experts, p, experts, options_given(p->options, "expert-group"),
        line->expert_group > 0 ? line->expert_group : ranks);
    add_degrees(&s->vocab, p, ranks, options_given(p->options, "vocab-group"), line->vocab_group);
    bool chunk_given = options_given(p->options, "chunk-budget");
    bool bucket_given = options_given(p->options, "bucket");
    if (chunk_given)
        add_value(&s->chunk, line->chunk_budget);
    for (int64_t c = CHUNK_MOST; !chunk_given && c >= CHUNK_LEAST; c /= 2)
        add_value(&s->chunk, c);
    if (bucket_given)
        add_value(&s->bucket, line->bucket);
    for (int64_t beta = BUCKET_LEAST; !bucket_given && beta <= BUCKET_MOST; beta *= 4)
        add_value(&s->bucket, beta);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The pinned bytes of one boundary, and of all the rest with none. */
static int host_room(
    const struct plan *p, struct plan_line *line, const struct model_budget *all, int64_t *room)
{
    struct model_budget none;
    line->host_budget = 0;
    if (plan_budget(p, line, &none))
        return -1;
    int64_t left = plan_host_limit_bytes(p) - none.host_bytes;
    *room = left >= all->host_bytes - none.host_bytes ? -1 : left > 0 ? left : 0;
    return 0;
}

/* Layers by what they keep of attention. */
static int count_kept(const struct plan_search *s, struct plan_candidate *c)
{
    struct model_shape shape = plan_shape(s->plan, &c->line);
    struct model_options options = plan_options(&c->line);
    struct recompute_plan plan;
    memset(c->kept, 0, sizeof c->kept);
    if (c->line.keep_attention <= 0)
        return 0;
    int32_t *choice = malloc((size_t)shape.layers * sizeof *choice);
    int status = choice ? model_keep_choose(&shape, &options, choice, &plan) : -1;
    for (int64_t layer = 0; status == 0 && layer < shape.layers; layer++)
        if (choice[layer] >= 0)
            c->kept[choice[layer]]++;
    free(choice);
    return status;
}

static int measure(struct plan_search *s, struct plan_candidate *c)
{
    const struct plan *p = s->plan;
    struct model_budget budget;
    int64_t row = plan_candidate_tokens(s, c) * p->list.width[MODEL_WIDTH_HIDDEN] * 2;
    int64_t boundaries = 2 * p->list.width[MODEL_WIDTH_LAYERS];
    if (plan_budget(p, &c->line, &budget))
        return -1;
    c->device_bytes =
        p->line.verdict == PLAN_BALANCED ? budget.balanced_bytes : budget.device_bytes;
    c->host_bytes = budget.host_bytes;
    int64_t held = c->line.host_budget < 0 ? boundaries : c->line.host_budget / row;
    c->host_boundaries = held < boundaries ? held : boundaries;
    if (count_kept(s, c))
        return -1;
    c->fits = c->device_bytes <= plan_limit_bytes(p) && c->host_bytes <= plan_host_limit_bytes(p);
    return 0;
}

static int keep(struct plan_search *s, const struct plan_candidate *c)
{
    if (s->count % 1024 == 0) {
        size_t more = (size_t)(s->count + 1024) * sizeof *s->candidate;
        struct plan_candidate *grown = realloc(s->candidate, more);
        if (!grown)
            return -1;
        s->candidate = grown;
    }
    s->candidate[s->count++] = *c;
    s->fitting += c->fits;
    return 0;
}

/* What is left of the device for attention; even routing is never quite even, and asks for a part
 * of it. */
static int64_t left_bytes(const struct plan_search *s, const struct plan_candidate *c)
{
    const struct plan *p = s->plan;
    int64_t limit = plan_limit_bytes(p);
    int64_t slack = p->line.verdict == PLAN_BALANCED ? limit / UNEVEN_SHARE : 0;
    return limit - slack - c->device_bytes;
}

/* The candidate as it is; and with attention kept in what is left. */
static int add_with_attention(struct plan_search *s, struct plan_candidate c)
{
    if (measure(s, &c) || keep(s, &c))
        return -1;
    if (!c.fits || options_given(s->plan->options, "keep-attention"))
        return 0;
    c.line.keep_attention = left_bytes(s, &c);
    if (c.line.keep_attention <= 0)
        return 0;
    if (measure(s, &c))
        return -1;
    bool keeps = false;
    for (int i = 0; i < MODEL_KEEP_OPTIONS; i++)
        keeps = keeps || c.kept[i];
    return keeps ? keep(s, &c) : 0;
}

/* With as many boundaries on the host as it holds; and with none there. */
static int add_candidate(struct plan_search *s, struct plan_candidate c)
{
    struct plan_line line = c.line;
    struct model_budget all;
    int64_t room = 0;
    if (options_given(s->plan->options, "host-budget"))
        return add_with_attention(s, c);
    line.host_budget = -1;
    if (plan_budget(s->plan, &line, &all) || host_room(s->plan, &line, &all, &room))
        return -1;
    c.line.host_budget = room;
    if (add_with_attention(s, c))
        return -1;
    c.line.host_budget = 0;
    return room ? add_with_attention(s, c) : 0;
}

/* Whether its ring over the vocabulary can have the tile that is given. */
static bool takes_tile(const struct plan_search *s, const struct plan_candidate *c)
{
    struct model_shape shape = plan_shape(s->plan, &c->line);
    struct model_options options = plan_options(&c->line);
    char error[160];
    return model_check_options(&shape, &options, error, sizeof error) == 0;
}

static int add_all(struct plan_search *s)
{
    struct plan_candidate c = {.line = s->plan->line};
    for (c.place = 0; c.place < s->group.count; c.place++)
        for (c.experts = 0; c.experts < s->experts.count; c.experts++)
            for (c.vocab = 0; c.vocab < s->vocab.count; c.vocab++)
                for (c.chunk = 0; c.chunk < s->chunk.count; c.chunk++)
                    for (c.bucket = 0; c.bucket < s->bucket.count; c.bucket++) {
                        c.line.sequence_group = s->group.value[c.place];
                        c.line.sequences = s->sequences.value[c.place];
                        c.line.expert_group = s->experts.value[c.experts];
                        c.line.vocab_group = s->vocab.value[c.vocab];
                        c.line.chunk_budget = s->chunk.value[c.chunk];
                        c.line.bucket = s->bucket.value[c.bucket];
                        /* A budget of all tokens twice over is the one of all. */
                        if (c.chunk + 1 < s->chunk.count &&
                            s->chunk.value[c.chunk + 1] >= plan_candidate_tokens(s, &c))
                            continue;
                        if (!takes_tile(s, &c))
                            continue;
                        if (add_candidate(s, c))
                            return -1;
                    }
    return 0;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* One simulated step of the candidate with so many layers, on the plan's machine. NaN after a
 * failure. */
static double simulate(struct plan_search *s, enum step_part part, const struct plan_candidate *c,
    int64_t layers, double *attention_s)
{
    struct model_shape shape = plan_shape(s->plan, &c->line);
    struct model_options options = plan_options(&c->line);
    struct step_time time;
    if (layers > 0)
        shape.layers = layers;
    s->steps++;
    if (step_time_run(
            part, &shape, &options, &s->plan->machine, 1, &time, s->error, sizeof s->error))
        return NAN;
    if (attention_s)
        *attention_s = time.attention_s;
    return time.seconds[0];
}

static double optimizer_of(struct plan_search *s, const struct plan_candidate *c)
{
    double *known = &s->optimizer_s[c->experts][c->bucket];
    if (isnan(*known))
        *known = simulate(s, STEP_OPTIMIZER, c, 0, NULL);
    return *known;
}

/* Forward and backward of one or two layers and what is done once, all boundaries on the host. */
static double passes_of(
    struct plan_search *s, struct plan_candidate c, int layers, double *attention_s)
{
    double *optimizer_s = &s->base_optimizer_s[c.experts][layers - 1];
    c.bucket = FIRST;
    c.line.bucket = s->bucket.value[FIRST];
    if (isnan(*optimizer_s))
        *optimizer_s = simulate(s, STEP_OPTIMIZER, &c, layers, NULL);
    return simulate(s, STEP_WHOLE, &c, layers, attention_s) - *optimizer_s;
}

static struct plan_candidate reference_of(const struct plan_search *s, struct plan_candidate c)
{
    c.experts = c.vocab = c.chunk = FIRST;
    c.line.expert_group = s->experts.value[FIRST];
    c.line.vocab_group = s->vocab.value[FIRST];
    c.line.chunk_budget = s->chunk.value[FIRST];
    c.line.host_budget = -1;
    c.line.keep_attention = 0;
    return c;
}

/* The parts of a place at the first values of all else. */
static void time_place(struct plan_search *s, const struct plan_candidate *c)
{
    struct plan_candidate reference = reference_of(s, *c);
    if (!isnan(s->attention_s[c->place]))
        return;
    double one = passes_of(s, reference, 1, &s->attention_s[c->place]);
    double two = passes_of(s, reference, 2, NULL);
    s->layer_s[c->place][FIRST][FIRST] = two - one;
    s->once_s[c->place][FIRST] = one - (two - one);
    reference.line.host_budget = 0;
    s->kept_s[c->place] = (passes_of(s, reference, 2, NULL) - two) / 4;
}

/* What a layer spares that keeps so much of its attention: two that do, beside two that do not. */
static double kept_attention_of(struct plan_search *s, const struct plan_candidate *c, int option)
{
    struct plan_candidate reference = reference_of(s, *c);
    struct model_shape shape = plan_shape(s->plan, &reference.line);
    struct recompute_option options[MODEL_KEEP_OPTIONS];
    double *known = &s->kept_attention_s[c->place][option];
    if (!isnan(*known))
        return *known;
    model_keep_options(&shape, options);
    reference.line.keep_attention = 2 * options[option].kept_bytes;
    double layer = s->layer_s[c->place][FIRST][FIRST], once = s->once_s[c->place][FIRST];
    *known = (passes_of(s, reference, 2, NULL) - once) / 2 - layer;
    return *known;
}

static double layer_of(struct plan_search *s, const struct plan_candidate *c)
{
    struct plan_candidate one = reference_of(s, *c);
    double *known = &s->layer_s[c->place][c->experts][c->chunk];
    one.experts = c->experts;
    one.chunk = c->chunk;
    one.line.expert_group = c->line.expert_group;
    one.line.chunk_budget = c->line.chunk_budget;
    if (isnan(*known))
        *known = (passes_of(s, one, 2, NULL) - s->once_s[c->place][FIRST]) / 2;
    return *known;
}

static double once_of(struct plan_search *s, const struct plan_candidate *c)
{
    struct plan_candidate one = reference_of(s, *c);
    double *known = &s->once_s[c->place][c->vocab];
    one.vocab = c->vocab;
    one.line.vocab_group = c->line.vocab_group;
    if (isnan(*known))
        *known = passes_of(s, one, 1, NULL) - s->layer_s[c->place][FIRST][FIRST];
    return *known;
}

int plan_search_time(struct plan_search *s, struct plan_candidate *c)
{
    double layers = (double)s->plan->list.width[MODEL_WIDTH_LAYERS];
    if (c->timed)
        return 0;
    time_place(s, c);
    c->part_s[PLAN_ATTENTION] = layers * s->attention_s[c->place];
    c->part_s[PLAN_EXPERTS] = layers * (layer_of(s, c) - s->attention_s[c->place]);
    c->part_s[PLAN_ONCE] = once_of(s, c);
    c->part_s[PLAN_KEPT] = s->kept_s[c->place] * (2 * layers - (double)c->host_boundaries);
    c->part_s[PLAN_KEPT_ATTENTION] = 0;
    for (int i = 0; i < MODEL_KEEP_OPTIONS; i++)
        if (c->kept[i])
            c->part_s[PLAN_KEPT_ATTENTION] += (double)c->kept[i] * kept_attention_of(s, c, i);
    c->part_s[PLAN_OPTIMIZER] = optimizer_of(s, c);
    c->seconds = 0;
    for (int i = 0; i < PLAN_PARTS; i++)
        c->seconds += c->part_s[i];
    c->timed = !isnan(c->seconds);
    return c->timed ? 0 : -1;
}

int plan_search_whole(struct plan_search *s, const struct plan_candidate *c,
    const struct profile *machines, int count, struct step_time *out)
{
    struct model_shape shape = plan_shape(s->plan, &c->line);
    struct model_options options = plan_options(&c->line);
    s->steps++;
    return step_time_run(
        STEP_WHOLE, &shape, &options, machines, count, out, s->error, sizeof s->error);
}

/* ---- the search ------------------------------------------------------------------------------ */

int64_t plan_candidate_tokens(const struct plan_search *s, const struct plan_candidate *c)
{
    return c->line.sequences * (s->plan->line.context / c->line.sequence_group);
}

double plan_candidate_rate(const struct plan_search *s, const struct plan_candidate *c)
{
    return (double)plan_candidate_tokens(s, c) / c->seconds;
}

static void forget(double *known, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *known; i++)
        known[i] = NAN;
}

int plan_search_run(struct plan_search *s, const struct plan *plan)
{
    *s = (struct plan_search){.plan = plan, .best = -1};
    forget(s->once_s[0], sizeof s->once_s);
    forget(s->layer_s[0][0], sizeof s->layer_s);
    forget(s->attention_s, sizeof s->attention_s);
    forget(s->kept_s, sizeof s->kept_s);
    forget(s->kept_attention_s[0], sizeof s->kept_attention_s);
    forget(s->optimizer_s[0], sizeof s->optimizer_s);
    forget(s->base_optimizer_s[0], sizeof s->base_optimizer_s);
    list_values(s);
    if (add_all(s)) {
        snprintf(s->error, sizeof s->error, "no memory for the candidates");
        return -1;
    }
    if (!s->count) {
        snprintf(
            s->error, sizeof s->error, "no launch takes --tile %lld", (long long)plan->line.tile);
        return -1;
    }
    for (int64_t i = 0; i < s->count; i++) {
        struct plan_candidate *c = &s->candidate[i];
        if (!c->fits)
            continue;
        if (plan_search_time(s, c))
            return -1;
        const struct plan_candidate *best = s->best < 0 ? NULL : &s->candidate[s->best];
        if (!best || plan_candidate_rate(s, c) > plan_candidate_rate(s, best) ||
            (plan_candidate_rate(s, c) >= plan_candidate_rate(s, best) &&
                c->device_bytes < best->device_bytes))
            s->best = i;
    }
    return 0;
}

const char *plan_search_free_names(const struct plan *p, char *text, int size)
{
    static const char *const names[][2] = {{"sequence-group", "D"}, {"sequences", "B"},
        {"expert-group", "E_p"}, {"vocab-group", "P"}, {"chunk-budget", "c"}, {"bucket", "beta"},
        {"host-budget", "S"}, {"keep-attention", "A"}};
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!options_given(p->options, names[i][0]) && used < size)
            used +=
                snprintf(text + used, (size_t)(size - used), "%s%s", used ? "+" : "", names[i][1]);
    return text;
}

void plan_search_free(struct plan_search *s)
{
    free(s->candidate);
    s->candidate = NULL;
}
