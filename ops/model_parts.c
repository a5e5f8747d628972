/* Parameters of the composed model: the list of parts, their seeds, and the two collectives of a
 * step that move parameters, gradients to slices and slices back to weights. */
#include "ops/model_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "probe/seed.h"

enum { TENSORS_OF_LAYER = MODEL_DOWN - MODEL_Q + 1 };

/* ---- the list -------------------------------------------------------------------------------- */

static const char *const tensor_names[] = {
    "embedding", "q", "k", "v", "o", "router", "gate", "up", "down", "head", "gains"};

const char *model_tensor_name(enum model_tensor tensor)
{
    return tensor_names[tensor];
}

static bool is_expert(enum model_tensor tensor)
{
    return tensor >= MODEL_GATE && tensor <= MODEL_DOWN;
}

int64_t model_whole_count(const struct model_shape *shape, const struct model_part *part)
{
    if (part->tensor == MODEL_HEAD)
        return shape->vocab * shape->hidden;
    return part->count * (is_expert(part->tensor) ? shape->layout.degree[LAYOUT_EXPERTS] : 1);
}

int64_t model_elements(const struct model_shape *s)
{
    int64_t layer = s->hidden * (4 * s->hidden + s->layout.experts * (1 + 3 * s->ffn));
    return s->hidden * (2 * s->vocab + 2 * s->layers + 1) + s->layers * layer;
}

static int64_t count_of(const struct model_shape *shape, enum model_tensor tensor, int rank)
{
    int64_t hidden = shape->hidden, owned = shape->layout.experts;
    owned /= shape->layout.degree[LAYOUT_EXPERTS];
    struct layout_group vocab = layout_block(&shape->layout, LAYOUT_VOCAB, rank);
    switch (tensor) {
    case MODEL_EMBEDDING:
        return shape->vocab * hidden;
    case MODEL_ROUTER:
        return shape->layout.experts * hidden;
    case MODEL_GATE:
    case MODEL_UP:
    case MODEL_DOWN:
        return owned * shape->ffn * hidden;
    case MODEL_HEAD:
        return vocab_shard_rows(shape->vocab, vocab.size, vocab.place) * hidden;
    case MODEL_GAINS:
        return (2 * shape->layers + 1) * hidden;
    default:
        return hidden * hidden;
    }
}

/* Where the rank's part begins in the whole tensor. */
static int64_t global_first_of(const struct model_shape *shape, enum model_tensor tensor, int rank)
{
    struct layout_group experts = layout_block(&shape->layout, LAYOUT_EXPERTS, rank);
    struct layout_group vocab = layout_block(&shape->layout, LAYOUT_VOCAB, rank);
    if (is_expert(tensor))
        return experts.place * count_of(shape, tensor, rank);
    if (tensor == MODEL_HEAD)
        return vocab_shard_first(shape->vocab, vocab.size, vocab.place) * shape->hidden;
    return 0;
}

/* Who holds the same part, and the communicator over them. */
static void set_holders(struct model *m, struct model_part *part)
{
    const struct layout *layout = &m->layout;
    int everyone = m->shape.layout.ranks;
    part->holders = (struct layout_group){.stride = 1, .size = everyone, .place = m->rank};
    part->comm = m->world;
    enum layout_degree degree = LAYOUT_DEGREES;
    if (is_expert(part->tensor))
        degree = LAYOUT_EXPERTS;
    else if (part->tensor == MODEL_HEAD)
        degree = LAYOUT_VOCAB;
    if (degree == LAYOUT_DEGREES)
        return;
    part->holders = layout->replicas[degree];
    part->comm = layout->replicas_comm[degree];
}

/* The first element of holder i's slice. */
static int64_t slice_first(const struct model_part *part, int holder)
{
    return layout_slice_first(part->count, part->holders.size, holder);
}

static void add_part(struct model *m, enum model_tensor tensor, int64_t layer, int64_t *first)
{
    struct model_part *part = &m->part[m->parts++];
    *part = (struct model_part){.tensor = tensor,
        .layer = layer,
        .count = count_of(&m->shape, tensor, m->rank),
        .first = *first,
        .global_first = global_first_of(&m->shape, tensor, m->rank)};
    if (layer < 0)
        snprintf(part->name, sizeof part->name, "%s", tensor_names[tensor]);
    else
        snprintf(
            part->name, sizeof part->name, "layer %lld %s", (long long)layer, tensor_names[tensor]);
    set_holders(m, part);
    part->slice_first = slice_first(part, part->holders.place);
    part->slice = slice_first(part, part->holders.place + 1) - part->slice_first;
    *first += part->count;
}

/* What is frozen gets no gradient, and must not decay either. */
static bool is_frozen(const struct model *m, enum model_tensor tensor)
{
    bool attention = tensor >= MODEL_Q && tensor <= MODEL_O;
    return (attention && m->options.freeze_attention) ||
           (is_expert(tensor) && m->options.freeze_experts);
}

/* The optimizer's tensors are the slices. */
static int lay_flat(struct model *m)
{
    struct adamw_tensor *tensors = calloc((size_t)m->parts, sizeof *tensors);
    if (!tensors)
        return -1;
    for (int64_t i = 0; i < m->parts; i++) {
        const struct model_part *part = &m->part[i];
        bool decays = part->tensor != MODEL_GAINS && !is_frozen(m, part->tensor);
        tensors[i] =
            (struct adamw_tensor){part->name, part->slice, decays ? ADAMW_DECAY : ADAMW_NO_DECAY};
    }
    int status = adamw_shape_init(&m->flat, tensors, m->parts, 1, 0);
    free(tensors);
    for (int64_t i = 0; status == 0 && i < m->parts; i++)
        m->part[i].flat_first = m->flat.part[i].first;
    return status;
}

int model_parts_init(struct model *m)
{
    int64_t first = 0;
    m->part = calloc((size_t)(m->shape.layers * TENSORS_OF_LAYER + 3), sizeof *m->part);
    if (!m->part)
        return -1;
    add_part(m, MODEL_EMBEDDING, -1, &first);
    for (int64_t layer = 0; layer < m->shape.layers; layer++)
        for (int tensor = MODEL_Q; tensor <= MODEL_DOWN; tensor++)
            add_part(m, (enum model_tensor)tensor, layer, &first);
    add_part(m, MODEL_GAINS, -1, &first);
    add_part(m, MODEL_HEAD, -1, &first);
    return lay_flat(m);
}

int model_parts_plan(struct model *m)
{
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        m->layout.block[i] = layout_block(&m->shape.layout, i, m->rank);
        m->layout.replicas[i] = layout_replicas(&m->shape.layout, i, m->rank);
    }
    return model_parts_init(m);
}

const struct model_part *model_part_of(
    const struct model *m, enum model_tensor tensor, int64_t layer)
{
    switch (tensor) {
    case MODEL_EMBEDDING:
        return &m->part[0];
    case MODEL_GAINS:
        return &m->part[m->parts - 2];
    case MODEL_HEAD:
        return &m->part[m->parts - 1];
    default:
        return &m->part[1 + layer * TENSORS_OF_LAYER + (int)tensor - (int)MODEL_Q];
    }
}

/* ---- resident weights ------------------------------------------------------------------------
 * The head comes last: where every rank holds all of it, its shard lies at its place there. */

static int64_t head_elements(const struct model *m)
{
    return m->options.vocab->full_weight ? m->shape.vocab * m->shape.hidden
                                         : m->part[m->parts - 1].count;
}

int64_t model_resident_elements(const struct model *m)
{
    return m->part[m->parts - 1].first + head_elements(m);
}

/* Where the part's own elements are. */
static uint16_t *own_weights(const struct model *m, const struct model_part *part)
{
    int64_t inside =
        part->tensor == MODEL_HEAD && m->options.vocab->full_weight ? part->global_first : 0;
    return m->weights + part->first + inside;
}

const uint16_t *model_weights(const struct model *m, enum model_tensor tensor, int64_t layer)
{
    return m->weights + model_part_of(m, tensor, layer)->first;
}

void model_read_part(struct model *m, const struct model_part *part, uint16_t *to)
{
    dev_read(m->dev, to, own_weights(m, part), part->count * (int64_t)sizeof *to);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

/* Uniform with the variance of 1 / fan-in; what is added to the residual stream starts smaller the
 * more blocks add to it. */
static float scale_of(const struct model_shape *shape, enum model_tensor tensor)
{
    double fan_in = tensor == MODEL_DOWN ? (double)shape->ffn : (double)shape->hidden;
    double scale = sqrt(3.0 / fan_in);
    if (tensor == MODEL_O || tensor == MODEL_DOWN)
        scale /= sqrt(2.0 * (double)shape->layers);
    return tensor == MODEL_EMBEDDING ? 1.0f : (float)scale;
}

static float seeded(const struct model *m, const struct model_part *part, int64_t index)
{
    if (part->tensor == MODEL_GAINS)
        return 1.0f;
    uint32_t tensor = (uint32_t)(part->layer + 1) * 16 + (uint32_t)part->tensor;
    return bf16_to_f32(seed_bf16(
        m->options.seed, tensor, part->global_first + index, scale_of(&m->shape, part->tensor)));
}

/* Master weights, and the moments at 0. */
static int seed_slices(struct model *m)
{
    float *values = calloc((size_t)m->flat.params + 1, sizeof *values);
    if (!values)
        return -1;
    adamw_write_state(&m->adamw, ADAMW_M, 0, m->flat.params, values);
    adamw_write_state(&m->adamw, ADAMW_V, 0, m->flat.params, values);
    for (int64_t i = 0; i < m->parts; i++)
        for (int64_t e = 0; e < m->part[i].slice; e++)
            values[m->part[i].flat_first + e] = seeded(m, &m->part[i], m->part[i].slice_first + e);
    adamw_write_state(&m->adamw, ADAMW_P, 0, m->flat.params, values);
    uint16_t *rounded = (uint16_t *)values; /* each is read before it is written over */
    for (int64_t i = 0; i < m->flat.params; i++)
        rounded[i] = f32_to_bf16(values[i]);
    dev_write(m->dev, m->adamw.weights, rounded, m->flat.params * (int64_t)sizeof *rounded);
    free(values);
    return 0;
}

void model_parts_free(struct model *m)
{
    adamw_shape_free(&m->flat);
    free(m->part);
    m->part = NULL;
}

enum dev_status model_parts_open(struct model *m)
{
    struct device *dev = m->dev;
    m->weights = dev_alloc(dev, model_resident_elements(m) * 2, LIVE_WEIGHTS, "working weights");
    m->adamw.shape = m->flat;
    m->adamw.options = m->options.adamw;
    m->adamw.dev = dev;
    m->adamw.comm = m->world;
    m->adamw.weights = dev_alloc(dev, m->flat.params * 2, LIVE_WEIGHTS, "slices of weights");
    m->gradients = dev_host_alloc(dev, m->flat.params * 4, LIVE_GRADIENTS, "slices of gradients");
    m->adamw.gradients = m->gradients;
    if (adamw_open(&m->adamw, m->options.optimizer) != DEV_OK)
        return dev_status(dev);
    if (!dev_is_simulated(dev) && seed_slices(m))
        dev_fail(dev, DEV_FAILED, "no host memory for the initial weights");
    model_refresh(m);
    return dev_status(dev);
}

void model_parts_close(struct model *m)
{
    if (m->adamw.dev)
        adamw_close(&m->adamw);
    dev_free(m->dev, m->adamw.weights);
    dev_host_free(m->dev, m->gradients);
    dev_free(m->dev, m->weights);
    model_parts_free(m);
}

/* ---- gradients and weights ------------------------------------------------------------------- */

void model_settle_gradient(struct model *m)
{
    struct model_leaving *leaving = &m->leaving;
    if (!leaving->gradient)
        return;
    dev_wait(dev_main_stream(m->dev), leaving->gone);
    dev_free(m->dev, leaving->scratch);
    dev_free(m->dev, leaving->sum);
    dev_free(m->dev, leaving->gradient);
    *leaving = (struct model_leaving){0};
}

/* Sums the gradient that leaves over the part's holders; returns this rank's slice of it. */
static float *sum_over_holders(struct model *m, const struct model_part *part)
{
    struct model_leaving *leaving = &m->leaving;
    int64_t counts[LAYOUT_RANKS_MAX];
    if (part->holders.size == 1)
        return leaving->gradient;
    for (int i = 0; i < part->holders.size; i++)
        counts[i] = slice_first(part, i + 1) - slice_first(part, i);
    rank_sum_scatter(comm_dup(part->comm, "gradients"), dev_stream(m->dev, "gradients"),
        leaving->gradient, counts, leaving->scratch, leaving->sum);
    return leaving->sum;
}

void model_send_gradient(struct model *m, enum model_tensor tensor, int64_t layer, float *gradient)
{
    const struct model_part *part = model_part_of(m, tensor, layer);
    struct stream *stream = dev_stream(m->dev, "gradients");
    int64_t slice_bytes = part->slice * 4, holders = part->holders.size;
    model_settle_gradient(m);
    m->leaving = (struct model_leaving){.gradient = gradient};
    if (holders > 1) {
        m->leaving.sum = dev_alloc(m->dev, slice_bytes, LIVE_GRADIENTS, "slice of a gradient");
        m->leaving.scratch =
            dev_alloc(m->dev, holders * slice_bytes, LIVE_WORKSPACE, "slices of all holders");
    }
    dev_wait_stream(stream, dev_main_stream(m->dev));
    float *sum = sum_over_holders(m, part);
    if (is_frozen(m, tensor))
        dev_fill(stream, sum, 0, slice_bytes);
    dev_copy_d2h(stream, m->gradients + part->flat_first, sum, slice_bytes);
    m->leaving.gone = dev_record(stream);
}

static void refresh_part(struct model *m, const struct model_part *part)
{
    int64_t bytes[LAYOUT_RANKS_MAX];
    for (int i = 0; i < part->holders.size; i++)
        bytes[i] = (slice_first(part, i + 1) - slice_first(part, i)) * 2;
    comm_all_gather_v(part->comm, dev_main_stream(m->dev), m->adamw.weights + part->flat_first,
        own_weights(m, part), bytes);
}

/* Every rank's shard to all of the vocabulary block. */
static void refresh_full_head(struct model *m)
{
    const struct model_part *part = model_part_of(m, MODEL_HEAD, -1);
    struct layout_group block = m->layout.block[LAYOUT_VOCAB];
    int64_t bytes[LAYOUT_RANKS_MAX];
    for (int i = 0; i < block.size; i++)
        bytes[i] = vocab_shard_rows(m->shape.vocab, block.size, i) * m->shape.hidden * 2;
    comm_all_gather_v(m->layout.block_comm[LAYOUT_VOCAB], dev_main_stream(m->dev),
        own_weights(m, part), m->weights + part->first, bytes);
}

void model_refresh(struct model *m)
{
    for (int64_t i = 0; i < m->parts; i++)
        refresh_part(m, &m->part[i]);
    if (m->options.vocab->full_weight)
        refresh_full_head(m);
}
