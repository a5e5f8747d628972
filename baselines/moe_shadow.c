/* Which experts are shadowed, as a plan of segments, and how their gradients come home. */
#include "baselines/moe_shadow.h"
#include <stdbool.h>
#include <stdlib.h>
#include "kernels/rank_sum.h"

/* ---- the rule ---------------------------------------------------------------------------------
 */

struct hot {
    int64_t expert, routes;
};

static int hotter_first(const void *a, const void *b)
{
    const struct hot *x = a, *y = b;
    if (x->routes != y->routes)
        return x->routes > y->routes ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

static int64_t count(const struct moe_layout *layout, int rank, int64_t expert)
{
    return layout->counts[rank * layout->experts + expert];
}

static int64_t busiest(const int64_t *load, int ranks)
{
    int64_t most = 0;
    for (int r = 0; r < ranks; r++)
        most = load[r] > most ? load[r] : most;
    return most;
}

/* Routes of an expert move from its owner to where their tokens are, or back. */
static void shift(const struct moe_layout *layout, int64_t expert, int sign, int64_t *load)
{
    for (int r = 0; r < layout->ranks; r++) {
        load[r] += sign * count(layout, r, expert);
        load[expert / layout->owned] -= sign * count(layout, r, expert);
    }
}

/* Marks the shadowed experts and leaves their loads in the plan; returns how many. */
static int64_t choose(const struct moe_layout *layout, const struct shadow_rule *rule,
    struct hot *hot, bool *shadowed, int64_t *load)
{
    const struct moe_shape *s = rule->shape;
    double values = (double)moe_expert_values(s), type_bytes = (double)dtype_bytes(s->dtype);
    double row = 6 * values / rule->flops_per_byte + 4 * (double)s->hidden * type_bytes;
    double expert = values * (type_bytes + 4);
    int64_t chosen = 0;
    qsort(hot, (size_t)layout->experts, sizeof *hot, hotter_first);
    double best = row * (double)busiest(load, layout->ranks);
    while (chosen < layout->experts && hot[chosen].routes > 0) {
        shift(layout, hot[chosen].expert, 1, load);
        double cost = row * (double)busiest(load, layout->ranks) + expert * (double)(chosen + 1);
        if (cost >= best) {
            shift(layout, hot[chosen].expert, -1, load);
            break;
        }
        best = cost;
        shadowed[hot[chosen++].expert] = true;
    }
    return chosen;
}

static void list_segments(
    struct llep_plan *plan, const struct moe_layout *layout, const bool *shadowed)
{
    int64_t at = 0;
    for (int64_t e = 0; e < layout->experts; e++) {
        int owner = (int)(e / layout->owned);
        int64_t position = 0;
        plan->expert_first[e] = at;
        for (int r = 0; r < layout->ranks; r++) {
            int64_t routes = count(layout, r, e);
            if (shadowed[e])
                plan->segments[at++] = (struct llep_segment){e, position, position + routes, r};
            position += routes;
        }
        if (!shadowed[e] && position > 0)
            plan->segments[at++] = (struct llep_segment){e, 0, position, owner};
    }
    plan->expert_first[layout->experts] = plan->segment_count = at;
}

int shadow_plan(struct llep_plan *plan, const struct moe_layout *layout, const void *context)
{
    size_t ranks = (size_t)layout->ranks, experts = (size_t)layout->experts;
    struct hot *hot = calloc(experts, sizeof *hot);
    bool *shadowed = calloc(experts, sizeof *shadowed);
    int64_t chosen = 0;
    *plan = (struct llep_plan){.load = calloc(ranks, sizeof *plan->load),
        .native_load = calloc(ranks, sizeof *plan->native_load),
        .expert_first = calloc(experts + 1, sizeof *plan->expert_first)};
    bool room = hot && shadowed && plan->load && plan->native_load && plan->expert_first;
    for (int64_t e = 0; room && e < layout->experts; e++) {
        hot[e].expert = e;
        for (int r = 0; r < layout->ranks; r++)
            hot[e].routes += count(layout, r, e);
        plan->native_load[e / layout->owned] += hot[e].routes;
        plan->load[e / layout->owned] += hot[e].routes;
    }
    if (room) {
        chosen = choose(layout, context, hot, shadowed, plan->load);
        plan->segments = calloc(experts + ranks * (size_t)chosen + 1, sizeof *plan->segments);
        room = plan->segments;
    }
    if (room) {
        list_segments(plan, layout, shadowed);
        plan->planned = chosen > 0;
        plan->transfers = chosen * (layout->ranks - 1);
    }
    free(hot);
    free(shadowed);
    if (!room)
        llep_plan_free(plan);
    return room ? 0 : -1;
}

/* ---- gradients home ---------------------------------------------------------------------------
 */

static bool is_shadowed(const struct moe_layout *layout, int64_t expert)
{
    return layout->plan.expert_first[expert + 1] - layout->plan.expert_first[expert] ==
               layout->ranks &&
           layout->ranks > 1;
}

/* Ranks whose part goes into an expert's sum. */
static int contributors(const struct moe_layout *layout, int64_t expert)
{
    int ranks = 0;
    for (int r = 0; r < layout->ranks; r++)
        ranks += count(layout, r, expert) > 0;
    return ranks;
}

/* Whether there is anything to do for an expert: a part that is not its owner's alone. */
static bool is_summed(const struct moe_layout *layout, int64_t expert)
{
    int ranks = contributors(layout, expert);
    return is_shadowed(layout, expert) &&
           ranks > (count(layout, (int)(expert / layout->owned), expert) > 0);
}

int64_t shadow_return_bytes(
    const struct moe_layout *layout, const struct moe_shape *shape, int rank)
{
    int most = 0;
    for (int64_t e = rank * layout->owned; e < (rank + 1) * layout->owned; e++)
        if (is_summed(layout, e) && contributors(layout, e) > most)
            most = contributors(layout, e);
    return most * moe_expert_values(shape) * (int64_t)sizeof(float);
}

/* A rank's gradients of one of its matrices, owned or lent: up, down, gate. */
struct gradients {
    float *of[3];
};

static struct gradients gradients_of(
    const struct moe_layer *layer, const struct moe_lent *lent, int64_t expert)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    int64_t values = m->shape.hidden * m->shape.ffn;
    int64_t segment = layout->plan.expert_first[expert] + m->rank;
    int64_t matrix = layout->places[layout->segment_place[segment]].matrix;
    struct gradients g = {{m->up_gradient, m->down_gradient, m->gate_gradient}};
    if (matrix >= layout->owned) {
        g = (struct gradients){{lent->up_gradient, lent->down_gradient, lent->gate_gradient}};
        matrix -= layout->owned;
    }
    for (int i = 0; i < 3; i++)
        g.of[i] = g.of[i] ? g.of[i] + matrix * values : NULL;
    return g;
}

/* The messages of one expert: from every contributor, the owner itself too, into the buffer. */
static void add_expert(
    struct moe_layer *layer, const struct moe_lent *lent, int64_t expert, float *buffer)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    int owner = (int)(expert / layout->owned), part = 0;
    int64_t values = m->shape.hidden * m->shape.ffn, bytes = values * (int64_t)sizeof(float);
    struct gradients own = gradients_of(layer, lent, expert);
    for (int r = 0; r < layout->ranks; r++) {
        if (!count(layout, r, expert))
            continue;
        float *to = buffer + part++ * moe_expert_values(&m->shape);
        for (int i = 0; i < 3; i++) {
            if (own.of[i] && m->rank == r)
                moe_layer_add_send(layer, owner, own.of[i], bytes);
            if (own.of[i] && m->rank == owner)
                moe_layer_add_receive(layer, r, to + i * values, bytes);
        }
    }
}

static void sum_expert(
    const struct moe_layer *layer, const struct moe_lent *lent, int64_t expert, const float *buffer)
{
    const struct moe *m = layer->m;
    int64_t values = m->shape.hidden * m->shape.ffn;
    struct gradients own = gradients_of(layer, lent, expert);
    for (int i = 0; i < 3; i++)
        if (own.of[i])
            rank_sum(
                dev_main_stream(m->dev), &(struct rank_sum_args){.parts = buffer + i * values,
                                             .count = values,
                                             .stride = moe_expert_values(&m->shape),
                                             .parts_count = contributors(&layer->layout, expert),
                                             .out = own.of[i]});
}

/* The owner's next expert with something to sum, -1 after the last. */
static int64_t next_of(const struct moe_layout *layout, int owner, int64_t *next)
{
    while (*next < (owner + 1) * layout->owned) {
        int64_t expert = (*next)++;
        if (is_summed(layout, expert))
            return expert;
    }
    return -1;
}

void shadow_return_gradients(struct moe_layer *layer, const struct moe_lent *lent)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    int64_t next[MOE_RANKS_MAX], bytes = shadow_return_bytes(layout, &m->shape, m->rank);
    float *buffer = bytes ? dev_alloc(m->dev, bytes, LIVE_WORKSPACE, "parts of a sum") : NULL;
    for (int owner = 0; owner < layout->ranks; owner++)
        next[owner] = owner * layout->owned;
    for (bool any = true; any && dev_status(m->dev) == DEV_OK;) {
        int64_t mine = -1;
        any = false;
        for (int owner = 0; owner < layout->ranks; owner++) {
            int64_t expert = next_of(layout, owner, &next[owner]);
            if (expert < 0)
                continue;
            any = true;
            add_expert(layer, lent, expert, buffer);
            mine = owner == m->rank ? expert : mine;
        }
        if (any)
            moe_layer_exchange(layer, m->comm, dev_main_stream(m->dev), "gradients of shadows");
        if (mine >= 0)
            sum_expert(layer, lent, mine, buffer);
    }
    dev_free(m->dev, buffer);
}
