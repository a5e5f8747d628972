/* Where a rank's rows go when every expert has the same room on every rank. A route's cell is its
 * expert's, its row the number of the rank's earlier routes to that expert. */
#include "baselines/moe_tutel_index.h"
#include <stdlib.h>

struct tutel_sizes tutel_sizes(const struct moe_shape *shape, const struct moe_options *options,
    const int64_t *counts, int rank)
{
    struct tutel_sizes z = {.ranks = shape->ranks,
        .topk = shape->topk,
        .tokens = shape->tokens[rank],
        .experts = shape->experts,
        .owned = moe_experts_per_rank(shape),
        .parts = options->parts > 0 ? options->parts : 1};
    int64_t most = 0;
    for (int64_t i = 0; i < shape->ranks * shape->experts; i++)
        most = counts[i] > most ? counts[i] : most;
    for (int64_t e = 0; e < shape->experts; e++)
        z.routes += counts[rank * shape->experts + e];
    z.capacity = (most + z.parts - 1) / z.parts;
    z.part_rows = z.experts * z.capacity;
    z.rows = z.parts * z.part_rows;
    return z;
}

int64_t tutel_block_bytes(const struct tutel_sizes *z)
{
    return (z->parts + 1) * z->experts * (int64_t)sizeof(struct expert_group) +
           (2 * z->rows + 3 * z->routes + z->tokens * z->topk) * (int64_t)sizeof(int32_t);
}

struct tutel_index tutel_index_in(void *block, const struct tutel_sizes *z)
{
    struct tutel_index at = {.products = block};
    at.gradients = at.products + z->experts;
    at.token_at = (int32_t *)(at.gradients + z->parts * z->experts);
    at.route_at = at.token_at + z->rows;
    at.row = at.route_at + z->rows;
    at.token = at.row + z->routes;
    at.slot = at.token + z->routes;
    at.position = at.slot + z->routes;
    return at;
}

/* Routes of a cell in a part, of so many in all parts. */
static int64_t rows_in_part(const struct tutel_sizes *z, int64_t routes, int64_t part)
{
    int64_t left = routes - part * z->capacity;
    return left < 0 ? 0 : left < z->capacity ? left : z->capacity;
}

static void fill_groups(
    const struct tutel_sizes *z, const int64_t *counts, int rank, struct tutel_index *at)
{
    for (int source = 0; source < z->ranks; source++)
        for (int64_t e = 0; e < z->owned; e++) {
            int64_t cell = source * z->owned + e;
            at->products[cell] = (struct expert_group){
                .first = cell * z->capacity, .rows = z->capacity, .weight = (int32_t)e};
            int64_t routes = counts[source * z->experts + rank * z->owned + e];
            for (int64_t part = 0; part < z->parts; part++)
                at->gradients[part * z->experts + cell] =
                    (struct expert_group){.first = e * z->capacity,
                        .rows = rows_in_part(z, routes, part),
                        .weight = (int32_t)e,
                        .init = part == 0 && source == 0 ? GEMM_FRESH : GEMM_CHAIN};
        }
}

int tutel_fill(
    const struct tutel_sizes *z, const int64_t *counts, int rank, const int32_t *idx, void *block)
{
    struct tutel_index at = tutel_index_in(block, z);
    int64_t *met = calloc((size_t)z->experts, sizeof *met);
    int32_t route = 0;
    if (!met || z->rows > INT32_MAX) {
        free(met);
        return -1;
    }
    fill_groups(z, counts, rank, &at);
    for (int64_t i = 0; i < z->rows; i++)
        at.token_at[i] = at.route_at[i] = -1;
    for (int64_t i = 0; i < z->tokens * z->topk; i++) {
        at.position[i] = -1;
        if (idx[i] == MOE_EMPTY)
            continue;
        int64_t number = met[idx[i]]++, part = number / z->capacity;
        int64_t row = part * z->part_rows + idx[i] * z->capacity + number % z->capacity;
        at.position[i] = (int32_t)row;
        at.token_at[row] = (int32_t)(i / z->topk);
        at.route_at[row] = route;
        at.row[route] = (int32_t)row;
        at.token[route] = (int32_t)(i / z->topk);
        at.slot[route++] = (int32_t)i;
    }
    free(met);
    return 0;
}
