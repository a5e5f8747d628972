/* The reference against the same formulas written as directly as they can be (naive_vocab.h), bit
 * for bit, in every order that a schedule declares; against values worked out by hand; and against
 * its own FP64 version. */
#include "bench/harness/check.h"
#include "tests/naive_vocab.h"
#include "tests/tap.h"

/* Compares all outputs; `what` names the case. */
static bool results_equal(const struct problem *p, const struct ref_vocab_result *got,
    const struct ref_vocab_result *want, char *text, int size)
{
    const struct ref_vocab_problem *r = &p->reference;
    struct {
        const char *name;
        enum dtype type;
        const void *got, *want;
        int dims;
        int64_t shape[2];
    } outputs[] = {
        {"max", DTYPE_F32, got->max, want->max, 1, {p->tokens, 1}},
        {"log_z", DTYPE_F32, got->log_z, want->log_z, 1, {p->tokens, 1}},
        {"loss", DTYPE_F32, got->loss, want->loss, 1, {p->tokens, 1}},
        {"dx", r->dtype, got->dx, want->dx, 2, {p->tokens, r->hidden}},
        {"dw", DTYPE_F32, got->dw, want->dw, 2, {r->vocab, r->hidden}},
    };
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        struct check_difference difference;
        int64_t count = outputs[i].shape[0] * outputs[i].shape[1];
        if (!check_equal(outputs[i].type, outputs[i].got, outputs[i].want, count, &difference)) {
            check_describe(
                outputs[i].name, outputs[i].dims, outputs[i].shape, &difference, text, size);
            return false;
        }
    }
    bool mean = got->mean == want->mean || (got->mean != got->mean && want->mean != want->mean);
    snprintf(text, (size_t)size, "mean %.17g and %.17g, valid %lld and %lld", got->mean, want->mean,
        (long long)got->valid, (long long)want->valid);
    return mean && got->valid == want->valid;
}

/* One problem in every order, reference against naive. */
static void compare_with_naive(const struct problem *p, const char *name)
{
    struct ref_vocab_result got = result_create(p), want = result_create(p);
    float *y = naive_logits(p);
    char text[256] = "";
    naive_forward(p, y, &want);
    for (enum problem_order kind = 0; kind < ORDER_KINDS; kind++) {
        struct vocab_order order = order_create(p->reference.ranks, kind);
        naive_backward(p, y, &order, &want);
        memset(got.dw, 0xff, (size_t)(p->reference.vocab * p->reference.hidden) * sizeof *got.dw);
        int status = ref_vocab(
            &p->reference, kind == ORDER_DEFAULT ? NULL : &order, &got, text, sizeof text);
        bool equal = !status && results_equal(p, &got, &want, text, sizeof text);
        if (!tap_ok(equal, "%s, %s", name, problem_order_names[kind]))
            tap_note("%s", text);
        vocab_order_free(&order);
    }
    free(y);
    result_free(&got);
    result_free(&want);
}

struct shape_case {
    const char *name;
    int ranks;
    int64_t tokens[PROBLEM_RANKS_MAX], hidden, vocab;
};

static const struct shape_case shapes[] = {
    {"one token, one column, one row", 1, {1}, 1, 1},
    {"one rank", 1, {9}, 17, 50},
    {"two ranks", 2, {5, 8}, 33, 64},
    {"ragged tokens, V not divisible by P", 3, {5, 0, 7}, 40, 103},
    {"V smaller than P", 4, {3, 2, 1, 4}, 8, 3},
    {"eight ranks, most without tokens", 8, {0, 0, 4, 0, 1, 0, 0, 2}, 5, 21},
    {"no tokens at all", 2, {0, 0}, 4, 6},
    {"segments of a shard", 2, {3, 2}, 6, 4500},
    {"more tokens and rows than a block", 2, {700, 3}, 3, 2200},
    {"products longer than a block", 2, {6, 7}, 301, 65},
};

int main(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            const struct shape_case *s = &shapes[i];
            struct problem *p = problem_create(dtype, s->ranks, s->tokens, s->hidden, s->vocab);
            char name[128];
            snprintf(name, sizeof name, "%s, %s", s->name, dtype == DTYPE_BF16 ? "BF16" : "FP32");
            compare_with_naive(p, name);
            problem_free(p);
        }
    return tap_done();
}
