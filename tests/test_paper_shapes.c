/* docs/MEMORY.md's table of the papers' shapes: the sum written there, term by term, equals each
 * implementation's closed form, and the printed increments are met or halved. The closed forms in
 * turn are held against measured peaks by the vocabulary tests. */
#include "tests/tap.h"
#include <math.h>
#include "ops/ring_dtp.h"
#include "ops/vocab.h"

#define HIDDEN 7168
#define VOCAB 200000
#define RANKS_MOST 8
#define GIB 1073741824.0

/* Increments of forward and backward over resident inputs and weights, FP32, as printed in
 * results/paper/table_10.csv. The last row is table_02.csv's peaks (79.521 and 10.622 GiB) less the
 * resident weight, input and the 0.0628 GiB which the paper's resident figures hold beside them. */
struct printed {
    int ranks;
    int64_t tokens;
    bool weights_move;
    double standard_gib, ring_dtp_gib;
};

static const struct printed printed[] = {
    {4, 16384, false, 36.6212, 9.6841},
    {8, 16384, false, 36.6212, 6.1545},
    {8, 32768, true, 73.2426, 9.0166},
};

/* The terms of docs/MEMORY.md; every rank has the same tokens and V is a multiple of P here. */
static int64_t ring_dtp_terms(int64_t ranks, int64_t tokens, bool weights_move)
{
    int64_t shard = VOCAB / ranks, moving = weights_move ? shard : tokens;
    int64_t tile = 4 * 1024 * moving;
    int64_t payload = 4 * moving * HIDDEN + (weights_move ? 0 : 16 * moving);
    int64_t ring_gradient = 4 * moving * HIDDEN;
    int64_t dx = 4 * tokens * HIDDEN, dw = 4 * shard * HIDDEN, token_outputs = 12 * tokens;
    return tile + 2 * payload + 2 * ring_gradient + dx + dw + token_outputs;
}

static void test_shape(const struct printed *p)
{
    int64_t tokens[RANKS_MOST];
    for (int r = 0; r < p->ranks; r++)
        tokens[r] = p->tokens;
    struct vocab_shape shape = {
        .ranks = p->ranks, .tokens = tokens, .hidden = HIDDEN, .vocab = VOCAB, .dtype = DTYPE_F32};
    struct vocab_options options = {.move = VOCAB_MOVE_AUTO};
    int64_t ring = vocab_ring_dtp.expected_bytes(&shape, &options, 0, -1, true);
    int64_t bound = vocab_ring_dtp.bound_bytes(&shape, &options, 0, true);
    int64_t standard = vocab_materialized.expected_bytes(&shape, &options, 0, -1, true);
    int64_t three = 3 * 4 * p->tokens * VOCAB + 12 * p->tokens;

    tap_note("P=%d N=%lld: ring-dtp %.4f GiB (printed %.4f, %.1f %% of it), bound %.4f; "
             "vocab-parallel %.4f, chunked-tokens %.4f, materialized %.4f (printed %.4f)",
        p->ranks, (long long)p->tokens, (double)ring / GIB, p->ring_dtp_gib,
        100.0 * (double)ring / GIB / p->ring_dtp_gib, (double)bound / GIB,
        (double)vocab_parallel.expected_bytes(&shape, &options, 0, -1, true) / GIB,
        (double)vocab_chunked_tokens.expected_bytes(&shape, &options, 0, -1, true) / GIB,
        (double)standard / GIB, p->standard_gib);
    tap_ok(ring_dtp_weights_move(&shape, &options) == p->weights_move, "auto moves %s",
        p->weights_move ? "weights" : "activations");
    tap_ok(ring == ring_dtp_terms(p->ranks, p->tokens, p->weights_move),
        "ring-dtp: closed form %lld is the sum of the terms", (long long)ring);
    tap_ok(ring <= bound, "ring-dtp: closed form is within the bound");
    tap_ok((double)ring <= 0.5 * p->ring_dtp_gib * GIB, "ring-dtp: at most half of the printed");
    tap_ok(standard == three, "materialized: three N x V tensors and 12 bytes a token");
    tap_ok(fabs((double)standard / GIB - p->standard_gib) < 0.0005,
        "materialized: the printed increment, to the printed digits");
}

int main(void)
{
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++)
        test_shape(&printed[i]);
    return tap_done();
}
