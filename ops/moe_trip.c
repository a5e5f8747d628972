/* The plain way of a chunk: gather, exchange, and later exchange, sum. */
#include "ops/moe_trip.h"
#include "ops/moe_expert.h"

static struct stream *main_of(const struct moe_layer *layer)
{
    return dev_main_stream(layer->m->dev);
}

static void *staging(const struct moe_layer *layer, int64_t chunk, const char *label)
{
    const struct moe *m = layer->m;
    int64_t bytes = moe_rows_bytes(&m->shape, moe_layer_sent(layer, chunk));
    return dev_alloc(m->dev, bytes, LIVE_STAGING, label);
}

/* With what was added before. */
static void send_rows(
    struct moe_layer *layer, int64_t chunk, const void *tokens, void *received, const char *label)
{
    const struct moe *m = layer->m;
    void *rows = staging(layer, chunk, "send rows");
    moe_layer_gather(layer, main_of(layer), chunk, tokens, rows);
    moe_layer_send(layer, chunk, rows, received, moe_rows_bytes(&m->shape, 1));
    moe_layer_exchange(layer, m->comm, main_of(layer), label);
    dev_free(m->dev, rows);
}

void moe_trip_out(struct moe_layer *layer, int64_t chunk, const void *tokens, void *received)
{
    send_rows(layer, chunk, tokens, received, "rows to experts");
}

void moe_trip_home(struct moe_layer *layer, int64_t chunk, const void *rows, void *spent)
{
    const struct moe *m = layer->m;
    void *home = staging(layer, chunk, "returned rows");
    moe_layer_return(layer, chunk, rows, home, moe_rows_bytes(&m->shape, 1));
    moe_layer_exchange(layer, m->comm, main_of(layer), "outputs home");
    dev_free(m->dev, spent);
    moe_layer_combine(layer, main_of(layer), chunk, home, true, m->y);
    dev_free(m->dev, home);
}

void moe_route_values_alloc(
    const struct moe_layer *layer, int64_t chunk, struct moe_route_values *v)
{
    struct device *dev = layer->m->dev;
    int64_t sent = moe_layer_sent(layer, chunk) * (int64_t)sizeof(float);
    int64_t received = moe_layer_received(layer, chunk) * (int64_t)sizeof(float);
    v->sent = dev_alloc(dev, sent, LIVE_WORKSPACE, "router weights sent");
    v->home = dev_alloc(dev, sent, LIVE_WORKSPACE, "router gradients home");
    v->weight = dev_alloc(dev, received, LIVE_WORKSPACE, "router weights");
    v->gradient = dev_alloc(dev, received, LIVE_WORKSPACE, "router gradients");
}

void moe_route_values_free(const struct moe_layer *layer, struct moe_route_values *v)
{
    struct device *dev = layer->m->dev;
    dev_free(dev, v->sent);
    dev_free(dev, v->home);
    dev_free(dev, v->weight);
    dev_free(dev, v->gradient);
}

void moe_trip_gradients_out(
    struct moe_layer *layer, int64_t chunk, const struct moe_route_values *v, void *received)
{
    moe_layer_gather_weights(layer, main_of(layer), chunk, v->sent);
    moe_layer_send(layer, chunk, v->sent, v->weight, sizeof(float));
    send_rows(layer, chunk, layer->m->dy, received, "gradients to experts");
}

void moe_trip_gradients_home(
    struct moe_layer *layer, int64_t chunk, const struct moe_route_values *v, void *rows)
{
    const struct moe *m = layer->m;
    void *home = staging(layer, chunk, "returned rows");
    moe_layer_return(layer, chunk, rows, home, moe_rows_bytes(&m->shape, 1));
    moe_layer_return(layer, chunk, v->gradient, v->home, sizeof(float));
    moe_layer_exchange(layer, m->comm, main_of(layer), "gradients home");
    dev_free(m->dev, rows);
    moe_layer_combine(layer, main_of(layer), chunk, home, false, m->dx);
    moe_layer_scatter_weights(layer, main_of(layer), chunk, v->home, m->router_gradient);
    dev_free(m->dev, home);
}
