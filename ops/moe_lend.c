/* Lending. The weights of all lent experts travel in one exchange. Gradients come home in rounds,
 * one expert for each owner, so that an owner needs room for one and no more; the rounds are the
 * same on all ranks because they follow from the plan. */
#include "ops/moe_lend.h"
#include "kernels/rank_sum.h"

static int64_t matrix_values(const struct moe_shape *shape)
{
    return shape->hidden * shape->ffn;
}

static int matrices(const struct moe_shape *shape)
{
    return shape->activation == MOE_RELU ? 2 : 3;
}

int64_t moe_expert_values(const struct moe_shape *shape)
{
    return matrices(shape) * matrix_values(shape);
}

/* ---- weights --------------------------------------------------------------------------------- */

void moe_lent_alloc(struct moe_layer *layer, struct moe_lent *lent)
{
    const struct moe *m = layer->m;
    *lent = (struct moe_lent){.count = moe_layout_lent(&layer->layout, m->rank)};
    int64_t bytes = lent->count * matrix_values(&m->shape) * dtype_bytes(m->shape.dtype);
    if (!bytes)
        return;
    if (m->gate)
        lent->gate = dev_alloc(m->dev, bytes, LIVE_WEIGHTS, "lent gate weights");
    lent->up = dev_alloc(m->dev, bytes, LIVE_WEIGHTS, "lent up weights");
    lent->down = dev_alloc(m->dev, bytes, LIVE_WEIGHTS, "lent down weights");
}

void moe_lent_free(struct moe_layer *layer, struct moe_lent *lent)
{
    struct device *dev = layer->m->dev;
    dev_free(dev, lent->gate);
    dev_free(dev, lent->up);
    dev_free(dev, lent->down);
    lent->gate = lent->up = lent->down = NULL;
}

/* One matrix of a lent expert: out on its owner, in on its helper. */
static void add_matrix(
    struct moe_layer *layer, const struct moe_place *place, const void *owned, void *lent)
{
    const struct moe *m = layer->m;
    int owner = moe_owner(&m->shape, place->expert);
    int64_t bytes = matrix_values(&m->shape) * dtype_bytes(m->shape.dtype);
    if (m->rank == owner)
        moe_layer_add_send(layer, place->rank,
            (const char *)owned + place->expert % layer->layout.owned * bytes, bytes);
    if (m->rank == place->rank)
        moe_layer_add_receive(
            layer, owner, (char *)lent + (place->matrix - layer->layout.owned) * bytes, bytes);
}

void moe_lent_fetch(
    struct moe_layer *layer, struct moe_lent *lent, struct comm *comm, struct stream *stream)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    if (layout->plan.transfers == 0 || dev_status(m->dev) != DEV_OK)
        return;
    for (int64_t p = 0; p < layout->place_count; p++) {
        const struct moe_place *place = &layout->places[p];
        if (place->matrix < layout->owned)
            continue;
        if (m->gate)
            add_matrix(layer, place, m->gate, lent->gate);
        add_matrix(layer, place, m->up, lent->up);
        add_matrix(layer, place, m->down, lent->down);
    }
    moe_layer_exchange(layer, comm, stream, "lent weights");
}

/* ---- gradients ------------------------------------------------------------------------------- */

void moe_lent_alloc_gradients(struct moe_layer *layer, struct moe_lent *lent)
{
    const struct moe *m = layer->m;
    int64_t bytes = lent->count * matrix_values(&m->shape) * (int64_t)sizeof(float);
    if (!bytes)
        return;
    if (m->gate)
        lent->gate_gradient = dev_alloc(m->dev, bytes, LIVE_GRADIENTS, "lent gate gradients");
    lent->up_gradient = dev_alloc(m->dev, bytes, LIVE_GRADIENTS, "lent up gradients");
    lent->down_gradient = dev_alloc(m->dev, bytes, LIVE_GRADIENTS, "lent down gradients");
}

void moe_lent_free_gradients(struct moe_layer *layer, struct moe_lent *lent)
{
    struct device *dev = layer->m->dev;
    dev_free(dev, lent->gate_gradient);
    dev_free(dev, lent->up_gradient);
    dev_free(dev, lent->down_gradient);
    lent->gate_gradient = lent->up_gradient = lent->down_gradient = NULL;
}

/* Walks over the lent segments in plan order. */
struct homecoming {
    const struct moe_layout *layout;
    int64_t segment; /* the next one to look at */
};

/* The owner's next lent segment, -1 after the last. */
static int64_t next_of(struct homecoming *home, int owner)
{
    const struct moe_layout *layout = home->layout;
    int64_t end = layout->plan.expert_first[(owner + 1) * layout->owned];
    for (; home->segment < end; home->segment++)
        if (layout->plan.segments[home->segment].rank != owner)
            return home->segment++;
    return -1;
}

/* Whether the segment is its expert's first: then nothing is there to add it to. */
static bool is_first(const struct moe_layout *layout, int64_t segment)
{
    return layout->plan.expert_first[layout->plan.segments[segment].expert] == segment;
}

int64_t moe_lent_return_bytes(
    const struct moe_layout *layout, const struct moe_shape *shape, int rank)
{
    struct homecoming home = {layout, layout->plan.expert_first[rank * layout->owned]};
    for (int64_t s = next_of(&home, rank); s >= 0; s = next_of(&home, rank))
        if (!is_first(layout, s))
            return moe_expert_values(shape) * (int64_t)sizeof(float);
    return 0;
}

/* An expert's three gradients, or two: gate first where there is one. */
struct gradients {
    float *of[3];
};

static struct gradients gradients_at(float *gate, float *up, float *down, int64_t offset)
{
    struct gradients g = {{gate ? gate + offset : NULL, up + offset, down + offset}};
    return g;
}

/* Where the segment's gradient arrives: with its owner's own, or in the buffer. */
static struct gradients arrival(const struct moe_layer *layer, int64_t segment, float *buffer)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    int64_t values = matrix_values(&m->shape);
    if (!is_first(layout, segment)) {
        struct gradients g = {{m->gate ? buffer + 2 * values : NULL, buffer, buffer + values}};
        return g;
    }
    int64_t matrix = layout->plan.segments[segment].expert % layout->owned;
    return gradients_at(m->gate_gradient, m->up_gradient, m->down_gradient, matrix * values);
}

static void add_messages(
    struct moe_layer *layer, const struct moe_lent *lent, int64_t segment, int owner, float *buffer)
{
    const struct moe_layout *layout = &layer->layout;
    const struct moe *m = layer->m;
    int64_t values = matrix_values(&m->shape);
    int helper = layout->plan.segments[segment].rank;
    struct gradients g;
    if (m->rank == helper) {
        int64_t lent_matrix = layout->places[layout->segment_place[segment]].matrix - layout->owned;
        g = gradients_at(
            lent->gate_gradient, lent->up_gradient, lent->down_gradient, lent_matrix * values);
    } else if (m->rank == owner) {
        g = arrival(layer, segment, buffer);
    } else {
        return;
    }
    for (int i = 0; i < 3; i++) {
        int64_t bytes = g.of[i] ? values * (int64_t)sizeof(float) : 0;
        if (m->rank == helper)
            moe_layer_add_send(layer, owner, g.of[i], bytes);
        else
            moe_layer_add_receive(layer, helper, g.of[i], bytes);
    }
}

static void add_arrived(const struct moe_layer *layer, int64_t segment, float *buffer)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    if (is_first(layout, segment))
        return;
    int64_t values = matrix_values(&m->shape);
    int64_t offset = layout->plan.segments[segment].expert % layout->owned * values;
    struct gradients from = arrival(layer, segment, buffer);
    struct gradients to = gradients_at(m->gate_gradient, m->up_gradient, m->down_gradient, offset);
    for (int i = 0; i < 3; i++)
        if (to.of[i])
            add_f32(dev_main_stream(m->dev), to.of[i], from.of[i], values);
}

/* One lent expert of every owner that has one left. False when none has. */
static bool round_home(struct moe_layer *layer, const struct moe_lent *lent,
    struct homecoming *homes, struct comm *comm, float *buffer)
{
    const struct moe *m = layer->m;
    int64_t mine = -1;
    bool any = false;
    for (int owner = 0; owner < layer->layout.ranks; owner++) {
        int64_t segment = next_of(&homes[owner], owner);
        if (segment < 0)
            continue;
        any = true;
        add_messages(layer, lent, segment, owner, buffer);
        if (owner == m->rank)
            mine = segment;
    }
    if (any)
        moe_layer_exchange(layer, comm, dev_main_stream(m->dev), "lent gradients");
    if (mine >= 0)
        add_arrived(layer, mine, buffer);
    return any;
}

void moe_lent_return_gradients(struct moe_layer *layer, struct moe_lent *lent, struct comm *comm)
{
    const struct moe *m = layer->m;
    const struct moe_layout *layout = &layer->layout;
    struct homecoming homes[MOE_RANKS_MAX];
    int64_t bytes = moe_lent_return_bytes(layout, &m->shape, m->rank);
    float *buffer = bytes ? dev_alloc(m->dev, bytes, LIVE_WORKSPACE, "a helper's gradient") : NULL;
    for (int owner = 0; owner < layout->ranks; owner++)
        homes[owner] =
            (struct homecoming){layout, layout->plan.expert_first[owner * layout->owned]};
    while (dev_status(m->dev) == DEV_OK && round_home(layer, lent, homes, comm, buffer))
        ;
    dev_free(m->dev, buffer);
    moe_lent_free_gradients(layer, lent);
}
