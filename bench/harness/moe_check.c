/* The gate of the dispatch program. */
#include "bench/harness/moe_check.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_reference.h"
#include "bench/harness/products.h"
#include "bench/harness/tensor_check.h"
#include "device/launch.h"
#include "probe/host.h"

/* Streams of the sample's random choice. */
enum { SAMPLE_TOKENS = 103, SAMPLE_EXPERTS = 104 };
/* Sums of whole numbers below this are exact in FP32, in BF16. */
#define EXACT_F32 0x1p24
#define EXACT_BF16 0x1p8

enum { Y, DX, DW, GATE, UP, DOWN, TENSORS };

struct moe_checker {
    struct moe_reference *reference;
};

struct moe_checker *moe_checker_create(void)
{
    struct moe_checker *checker = calloc(1, sizeof *checker);
    if (!checker)
        return NULL;
    checker->reference = moe_reference_create(host_memory_limit_bytes() / 4);
    if (!checker->reference) {
        free(checker);
        return NULL;
    }
    return checker;
}

void moe_checker_free(struct moe_checker *checker)
{
    if (checker)
        moe_reference_free(checker->reference);
    free(checker);
}

int64_t moe_check_operations(const struct moe_inputs *inputs, bool backward)
{
    const struct moe_shape *s = &inputs->shape;
    double matrices = s->activation == MOE_SWIGLU ? 3 : 2;
    double operations = (double)inputs->total * s->topk * (double)s->hidden * (double)s->ffn *
                        matrices * (backward ? 3 : 1);
    return operations < 9e18 ? (int64_t)operations : INT64_MAX;
}

static struct ref_moe_problem problem_of(const struct moe_inputs *inputs, bool backward)
{
    const struct moe_shape *s = &inputs->shape;
    return (struct ref_moe_problem){.tokens = inputs->total,
        .hidden = s->hidden,
        .ffn = s->ffn,
        .experts = s->experts,
        .topk = s->topk,
        .dtype = s->dtype,
        .x = inputs->arrays[MOE_X],
        .idx = inputs->idx,
        .weight = inputs->router_weight,
        .gate = inputs->arrays[MOE_GATE],
        .up = inputs->arrays[MOE_UP],
        .down = inputs->arrays[MOE_DOWN],
        .dy = backward ? inputs->arrays[MOE_DY] : NULL};
}

/* The outputs of a run, by the enum above; what the run does not have keeps got = NULL. */
static void list_tensors(const struct moe_run *run, bool declared_combine, bool declared_gradient,
    struct checked_tensor out[TENSORS])
{
    const struct moe_shape *s = &run->inputs->shape;
    const struct moe_outputs *o = &run->outputs;
    int64_t total = run->inputs->total, inner = s->experts * s->ffn, outer = s->experts * s->hidden;
    bool c = declared_combine, g = declared_gradient;
    out[Y] = (struct checked_tensor){"Y", s->dtype, 2, total, s->hidden, o->y, c, !c};
    out[DX] = (struct checked_tensor){"dX", s->dtype, 2, total, s->hidden, o->dx, c, !c};
    out[DW] = (struct checked_tensor){
        "dw", DTYPE_F32, 2, total, s->topk, o->router_gradient, false, true};
    out[GATE] = (struct checked_tensor){
        "dWgate", DTYPE_F32, 2, inner, s->hidden, o->gate_gradient, g, false};
    out[UP] =
        (struct checked_tensor){"dWup", DTYPE_F32, 2, inner, s->hidden, o->up_gradient, g, false};
    out[DOWN] =
        (struct checked_tensor){"dWdown", DTYPE_F32, 2, outer, s->ffn, o->down_gradient, g, false};
}

/* Moves the tensors that the run has to the front, keeping which is which. Returns how many. */
static int keep_present(struct checked_tensor tensors[TENSORS], int which[TENSORS])
{
    int count = 0;
    for (int i = 0; i < TENSORS; i++) {
        if (!tensors[i].got)
            continue;
        tensors[count] = tensors[i];
        which[count++] = i;
    }
    return count;
}

/* What a check works on. */
struct gate {
    struct moe_checker *checker;
    const struct moe_run *run;
    struct moe_order order;
    struct checked_tensor tensors[TENSORS];
    int which[TENSORS], count;
    struct case_result *result;
};

/* ---- reference ----------------------------------------------------------------------------------
 */

static void list_results(const struct ref_moe_result *r, const void *out[TENSORS])
{
    const void *all[TENSORS] = {
        r->y, r->dx, r->router_gradient, r->gate_gradient, r->up_gradient, r->down_gradient};
    memcpy(out, all, sizeof all);
}

static void demand_bounds(struct gate *gate, const struct ref_moe_f64 *f64)
{
    const double *values[TENSORS] = {f64->y, f64->dx, f64->router_gradient, f64->gate_gradient,
        f64->up_gradient, f64->down_gradient};
    const double *bounds[TENSORS] = {f64->y_bound, f64->dx_bound, f64->router_bound,
        f64->gate_bound, f64->up_bound, f64->down_bound};
    for (int i = 0; i < gate->count; i++)
        tensor_demand_bounds(&gate->tensors[i], values[gate->which[i]], bounds[gate->which[i]],
            &gate->result->tensors[i]);
}

static int against_reference(struct gate *gate, char *error, int size)
{
    const struct moe_run *run = gate->run;
    struct moe_reference *reference = gate->checker->reference;
    struct ref_moe_problem problem = problem_of(run->inputs, run->backward);
    struct ref_moe_result want;
    struct ref_moe_f64 f64;
    const void *wanted[TENSORS];
    bool integers = run->inputs->integers;
    if (moe_reference_get(reference, &problem, NULL, run->backward, &want, error, size))
        return -1;
    list_results(&want, wanted);
    for (int i = 0; i < gate->count; i++) {
        tensor_note_distance(&gate->tensors[i], wanted[gate->which[i]], &gate->result->tensors[i]);
        if (integers)
            tensor_compare(&gate->tensors[i], wanted[gate->which[i]], VERDICT_EXACT_INPUT,
                &gate->result->tensors[i]);
    }
    if (integers)
        return 0;
    if (moe_reference_get(reference, &problem, &gate->order, run->backward, &want, error, size))
        return -1;
    list_results(&want, wanted);
    for (int i = 0; i < gate->count; i++)
        tensor_compare(
            &gate->tensors[i], wanted[gate->which[i]], VERDICT_BITWISE, &gate->result->tensors[i]);
    if (moe_reference_get_f64(reference, &problem, run->backward, &f64, error, size))
        return -1;
    demand_bounds(gate, &f64);
    return 0;
}

/* ---- inputs of whole numbers --------------------------------------------------------------------
 */

static double largest(const double *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; values && i < count; i++)
        if (values[i] > most)
            most = values[i];
    return most;
}

static void absolute(enum dtype type, void *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (type == DTYPE_BF16)
            ((uint16_t *)values)[i] &= 0x7fffu;
        else
            ((float *)values)[i] = fabsf(((float *)values)[i]);
    }
}

/* Refuses inputs whose sums could round: the problem of absolute values, where nothing cancels,
 * must stay below 2^24 everywhere, and below 2^8 where a BF16 store follows. Products inside an
 * expert are not outputs; a row of X or dY and a column of weights bound them. */
static int demand_exact(
    const struct moe_run *run, const struct moe_inputs *inputs, char *error, int size)
{
    const struct moe_shape *s = &inputs->shape;
    int64_t rows = inputs->total * s->hidden, slots = inputs->total * s->topk;
    int64_t matrix = s->experts * s->ffn * s->hidden;
    double *all = malloc((size_t)(4 * rows + 2 * slots + 4 * matrix + 1) * sizeof *all), *at = all;
    struct ref_moe_f64 f64 = {.y = at, .y_bound = at + rows};
    int status = -1;
    snprintf(error, (size_t)size, "no host memory to bound the sums of whole numbers");
    struct moe_inputs positive = *inputs;
    memset(positive.arrays, 0, sizeof positive.arrays);
    if (all && moe_inputs_materialize(&positive) == 0) {
        for (int t = MOE_X; t < MOE_TENSORS; t++)
            if (positive.arrays[t])
                absolute(
                    s->dtype, positive.arrays[t], moe_inputs_count(inputs, (enum moe_tensor)t));
        if (run->backward) {
            f64.dx = at + 2 * rows, f64.dx_bound = at + 3 * rows;
            f64.router_gradient = at + 4 * rows, f64.router_bound = f64.router_gradient + slots;
            f64.up_gradient = f64.router_bound + slots, f64.up_bound = f64.up_gradient + matrix;
            f64.down_gradient = f64.up_bound + matrix;
            f64.down_bound = f64.down_gradient + matrix;
        }
        struct ref_moe_problem problem = problem_of(&positive, run->backward);
        status = ref_moe_f64(&problem, &f64, error, size);
    }
    if (status == 0) {
        double stored = fmax(largest(f64.y, rows), largest(f64.dx, rows));
        double summed = fmax(largest(f64.router_gradient, f64.router_gradient ? slots : 0),
            fmax(largest(f64.up_gradient, f64.up_gradient ? matrix : 0),
                largest(f64.down_gradient, f64.down_gradient ? matrix : 0)));
        double store_limit = s->dtype == DTYPE_BF16 ? EXACT_BF16 : EXACT_F32;
        if (stored >= store_limit || summed >= EXACT_F32) {
            snprintf(error, (size_t)size,
                "whole numbers: sums reach %g and %g, allowed below %g (stored) and %g: make the "
                "shape smaller",
                stored, summed, store_limit, EXACT_F32);
            status = -1;
        }
    }
    for (int t = MOE_X; t < MOE_TENSORS; t++)
        free(positive.arrays[t]);
    free(all);
    return status;
}

/* ---- sample -------------------------------------------------------------------------------------
 */

static int against_sample(struct gate *gate, int64_t samples, char *error, int size)
{
    const struct moe_run *run = gate->run;
    const struct moe_shape *s = &run->inputs->shape;
    struct ref_moe_problem problem = problem_of(run->inputs, run->backward);
    int64_t total = run->inputs->total, matrix = s->ffn * s->hidden;
    int64_t most_tokens = samples < total ? samples : total;
    int64_t most_experts = samples < s->experts ? samples : s->experts;
    size_t row = (size_t)s->hidden * 4, weights = (size_t)(most_experts * matrix) * 4;
    size_t tokens_bytes = (size_t)most_tokens * row + 1;
    int64_t *tokens = malloc((size_t)most_tokens * 8 + 1),
            *experts = malloc((size_t)most_experts * 8);
    struct ref_moe_result want = {.y = malloc(tokens_bytes)};
    void *got = malloc(tokens_bytes);
    int status = tokens && experts && want.y && got ? 0 : -1;
    if (status == 0 && run->backward) {
        want.dx = malloc(tokens_bytes);
        want.router_gradient = malloc((size_t)(most_tokens * s->topk) * 4 + 1);
        want.gate_gradient = s->activation == MOE_SWIGLU ? malloc(weights) : NULL;
        want.up_gradient = malloc(weights);
        want.down_gradient = malloc(weights);
        status = want.dx && want.router_gradient && want.up_gradient && want.down_gradient ? 0 : -1;
    }
    snprintf(error, (size_t)size, "no host memory for %lld samples", (long long)samples);
    if (status == 0) {
        struct ref_moe_sample sample = {.tokens = tokens, .experts = experts};
        sample.tokens_count = tensor_sample(tokens, samples, total, SAMPLE_TOKENS);
        if (run->backward)
            sample.experts_count = tensor_sample(experts, samples, s->experts, SAMPLE_EXPERTS);
        status = ref_moe_sampled(&problem, &gate->order, &sample, &want, error, size);
        const void *wanted[TENSORS];
        list_results(&want, wanted);
        for (int i = 0; status == 0 && i < gate->count; i++) {
            struct checked_tensor *t = &gate->tensors[i];
            const char *expected = wanted[gate->which[i]];
            struct case_tensor *out = &gate->result->tensors[i];
            if (gate->which[i] <= DW) {
                tensor_gather_rows(t, tokens, sample.tokens_count, got);
                tensor_compare_rows(
                    t, got, expected, sample.tokens_count, tokens, VERDICT_BITWISE, out);
                continue;
            }
            for (int64_t e = 0; e < sample.experts_count && out->verdict != VERDICT_MISMATCH; e++)
                tensor_compare_rows(t, (const float *)t->got + experts[e] * matrix,
                    (const float *)(const void *)expected + e * matrix, matrix / t->columns, NULL,
                    VERDICT_BITWISE, out);
        }
    }
    void *arrays[] = {tokens, experts, got, want.y, want.dx, want.router_gradient,
        want.gate_gradient, want.up_gradient, want.down_gradient};
    for (int i = 0; i < 9; i++)
        free(arrays[i]);
    return status;
}

/* ---- baseline -----------------------------------------------------------------------------------
 */

static int against_baseline(struct gate *gate, char *error, int size)
{
    const struct moe_run *run = gate->run;
    struct case_result scratch;
    struct moe_run baseline = {.impl = moe_impls[0],
        .options = run->options,
        .inputs = run->inputs,
        .backward = run->backward,
        .ranks = run->ranks,
        .collect = true};
    if (case_result_init(&scratch, run->ranks->count)) {
        snprintf(error, (size_t)size, "no host memory for the baseline's run");
        return -1;
    }
    int status = moe_run(&baseline, &scratch);
    if (status)
        snprintf(
            error, (size_t)size, "baseline %s: %s", baseline.impl->name, baseline.failure.message);
    const void *wanted[3] = {
        baseline.outputs.y, baseline.outputs.dx, baseline.outputs.router_gradient};
    for (int i = 0; status == 0 && i < gate->count; i++)
        if (gate->which[i] <= DW && !gate->tensors[i].declared)
            tensor_compare(&gate->tensors[i], wanted[gate->which[i]], VERDICT_BITWISE,
                &gate->result->tensors[i]);
    moe_outputs_free(&baseline.outputs);
    case_result_free(&scratch);
    return status;
}

/* ---- the check ----------------------------------------------------------------------------------
 */

static int declare(struct gate *gate, char *error, int size)
{
    const struct moe_run *run = gate->run;
    const struct moe_inputs *inputs = run->inputs;
    const struct moe_shape *s = &inputs->shape;
    snprintf(error, (size_t)size, "no host memory for the order");
    if (moe_order_init(&gate->order, inputs->total, s->topk, s->experts, inputs->idx) ||
        run->impl->order(s, run->options, inputs->rank_idx, &gate->order) ||
        moe_order_check(&gate->order, inputs->idx, error, size))
        return -1;
    list_tensors(run, !moe_order_default_combine(&gate->order, inputs->idx),
        !moe_order_default_gradient(&gate->order), gate->tensors);
    gate->count = keep_present(gate->tensors, gate->which);
    return 0;
}

int moe_check(struct moe_checker *checker, struct moe_run *run, struct moe_inputs *inputs,
    enum case_check level, int64_t samples, struct case_result *result, char *error, int size)
{
    if (!launch_is_main() && level != CASE_CHECK_BASELINE)
        return 0; /* it has no outputs but its own; of the baseline it runs its ranks */
    struct gate gate = {.checker = checker, .run = run, .result = result};
    int status = declare(&gate, error, size);
    if (status == 0 && tensors_digest(gate.tensors, gate.count, result)) {
        snprintf(error, (size_t)size, "no host memory for digests");
        status = -1;
    }
    if (status == 0 && (level == CASE_CHECK_REFERENCE || level == CASE_CHECK_SAMPLE) &&
        moe_inputs_materialize(inputs)) {
        snprintf(error, (size_t)size, "no host memory for the inputs as arrays");
        status = -1;
    }
    if (status == 0 && inputs->integers && level != CASE_CHECK_OFF)
        status = demand_exact(run, inputs, error, size);
    if (status == 0 && level == CASE_CHECK_REFERENCE)
        status = against_reference(&gate, error, size);
    else if (status == 0 && level == CASE_CHECK_SAMPLE)
        status = against_sample(&gate, samples, error, size);
    else if (status == 0 && level == CASE_CHECK_BASELINE)
        status = against_baseline(&gate, error, size);
    if (level != CASE_CHECK_OFF)
        case_check_text(level, samples, result->against, sizeof result->against);
    moe_order_free(&gate.order);
    return status;
}

int moe_bound(const struct moe_run *run, const struct moe_run *fast, struct case_result *result,
    char *error, int size)
{
    struct checked_tensor tensors[TENSORS], of_fast[TENSORS];
    int which[TENSORS];
    list_tensors(run, false, false, tensors);
    list_tensors(fast, false, false, of_fast);
    int count = keep_present(tensors, which);
    keep_present(of_fast, which);
    return products_bound(tensors, of_fast, count, result, error, size);
}
