/* The gate of the vocabulary program: bytes against the reference in the declared order, values
 * against FP64, and how far the declared order's bits are from the default one's. */
#include "bench/harness/vocab_check.h"
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/products.h"
#include "bench/harness/tensor_check.h"
#include "bench/harness/vocab_reference.h"
#include "device/launch.h"
#include "probe/host.h"

/* Streams of the sample's random choice, apart from the inputs' tensors. */
enum { SAMPLE_TOKENS = 101, SAMPLE_ROWS = 102 };

struct vocab_checker {
    struct vocab_reference *reference;
};

enum { TENSORS = 5 };

struct vocab_checker *vocab_checker_create(void)
{
    struct vocab_checker *checker = calloc(1, sizeof *checker);
    if (!checker)
        return NULL;
    checker->reference = vocab_reference_create(host_memory_limit_bytes() / 4);
    if (!checker->reference) {
        free(checker);
        return NULL;
    }
    return checker;
}

void vocab_checker_free(struct vocab_checker *checker)
{
    if (checker)
        vocab_reference_free(checker->reference);
    free(checker);
}

int64_t vocab_check_operations(const struct vocab_shape *shape, bool backward)
{
    double operations = (double)vocab_total_tokens(shape) * (double)shape->vocab *
                        (double)shape->hidden * (backward ? 3 : 1);
    return operations < 9e18 ? (int64_t)operations : INT64_MAX;
}

static struct ref_vocab_problem problem_of(const struct vocab_inputs *inputs)
{
    const struct vocab_shape *shape = &inputs->shape;
    return (struct ref_vocab_problem){.ranks = shape->ranks,
        .tokens = shape->tokens,
        .hidden = shape->hidden,
        .vocab = shape->vocab,
        .dtype = shape->dtype,
        .x = inputs->x,
        .w = inputs->w,
        .targets = inputs->targets};
}

/* The outputs of a run; dx and dw only where there was a backward pass. Returns how many. */
static int list_tensors(const struct vocab_run *run, const struct vocab_order *order,
    struct checked_tensor out[TENSORS])
{
    const struct vocab_shape *shape = &run->inputs->shape;
    const struct vocab_outputs *o = &run->outputs;
    int64_t tokens = vocab_total_tokens(shape);
    out[0] = (struct checked_tensor){"loss", DTYPE_F32, 1, tokens, 1, o->loss, false, true};
    out[1] = (struct checked_tensor){"max", DTYPE_F32, 1, tokens, 1, o->max, false, true};
    out[2] = (struct checked_tensor){"log_z", DTYPE_F32, 1, tokens, 1, o->log_z, false, true};
    if (!run->backward)
        return 3;
    out[3] = (struct checked_tensor){
        "dX", shape->dtype, 2, tokens, shape->hidden, o->dx, !vocab_order_default_dx(order), false};
    out[4] = (struct checked_tensor){"dW", DTYPE_F32, 2, shape->vocab, shape->hidden, o->dw,
        !vocab_order_default_dw(order), false};
    return 5;
}

/* ---- reference ----------------------------------------------------------------------------------
 */

static void note_distance(const struct checked_tensor *tensors, int count,
    const struct ref_vocab_result *defaults, struct case_result *result)
{
    const void *want[TENSORS] = {
        defaults->loss, defaults->max, defaults->log_z, defaults->dx, defaults->dw};
    for (int i = 0; i < count; i++)
        tensor_note_distance(&tensors[i], want[i], &result->tensors[i]);
}

static void demand_bounds(const struct checked_tensor *tensors, int count,
    const struct ref_vocab_f64 *f64, struct case_result *result)
{
    tensor_demand_bounds(&tensors[0], f64->loss, f64->loss_bound, &result->tensors[0]);
    if (count < TENSORS)
        return;
    tensor_demand_bounds(&tensors[3], f64->dx, f64->dx_bound, &result->tensors[3]);
    tensor_demand_bounds(&tensors[4], f64->dw, f64->dw_bound, &result->tensors[4]);
}

static int against_reference(struct vocab_checker *checker, const struct vocab_run *run,
    const struct vocab_order *order, const struct checked_tensor *tensors, int count,
    struct case_result *result, char *error, int size)
{
    struct ref_vocab_problem problem = problem_of(run->inputs);
    struct ref_vocab_result want;
    struct ref_vocab_f64 f64;
    if (vocab_reference_get(checker->reference, &problem, NULL, run->backward, &want, error, size))
        return -1;
    note_distance(tensors, count, &want, result);
    if (vocab_reference_get(checker->reference, &problem, order, run->backward, &want, error, size))
        return -1;
    const void *wanted[TENSORS] = {want.loss, want.max, want.log_z, want.dx, want.dw};
    for (int i = 0; i < count; i++)
        tensor_compare(&tensors[i], wanted[i], VERDICT_BITWISE, &result->tensors[i]);
    if (vocab_reference_get_f64(checker->reference, &problem, run->backward, &f64, error, size))
        return -1;
    demand_bounds(tensors, count, &f64, result);
    return 0;
}

/* ---- sample -------------------------------------------------------------------------------------
 */

/* What a sample works in; freed as one. */
struct sample_arrays {
    int64_t *tokens, *rows;
    float *vectors; /* max, log z, loss of the sampled tokens */
    void *dx, *dw, *got;
};

static int sample_alloc(struct sample_arrays *a, int64_t samples, int64_t hidden)
{
    size_t n = (size_t)samples, row = (size_t)hidden * 4;
    *a = (struct sample_arrays){.tokens = malloc(n * 8),
        .rows = malloc(n * 8),
        .vectors = malloc(n * 12),
        .dx = malloc(n * row),
        .dw = malloc(n * row),
        .got = malloc(n * row)};
    return a->tokens && a->rows && a->vectors && a->dx && a->dw && a->got ? 0 : -1;
}

static void sample_free(struct sample_arrays *a)
{
    free(a->tokens);
    free(a->rows);
    free(a->vectors);
    free(a->dx);
    free(a->dw);
    free(a->got);
}

static int against_sample(const struct vocab_run *run, const struct vocab_order *order,
    int64_t samples, const struct checked_tensor *tensors, int count, struct case_result *result,
    char *error, int size)
{
    struct ref_vocab_problem problem = problem_of(run->inputs);
    struct sample_arrays a;
    int64_t larger = problem.vocab > tensors[0].rows ? problem.vocab : tensors[0].rows;
    samples = samples < larger ? samples : larger + 1;
    snprintf(error, (size_t)size, "no host memory for %lld samples", (long long)samples);
    int status = sample_alloc(&a, samples, problem.hidden);
    if (status == 0) {
        int64_t tokens = tensor_sample(a.tokens, samples, tensors[0].rows, SAMPLE_TOKENS);
        int64_t rows =
            run->backward ? tensor_sample(a.rows, samples, problem.vocab, SAMPLE_ROWS) : 0;
        struct ref_vocab_sample sample = {.tokens_count = tokens,
            .tokens = a.tokens,
            .rows_count = rows,
            .rows = a.rows,
            .all_max = run->outputs.max,
            .all_log_z = run->outputs.log_z};
        struct ref_vocab_result want = {.max = a.vectors,
            .log_z = a.vectors + samples,
            .loss = a.vectors + 2 * samples,
            .dx = run->backward ? a.dx : NULL,
            .dw = run->backward ? a.dw : NULL};
        status = ref_vocab_sampled(&problem, order, &sample, &want, error, size);
        const void *wanted[TENSORS] = {want.loss, want.max, want.log_z, want.dx, want.dw};
        for (int i = 0; status == 0 && i < count; i++) {
            bool weight = i == 4;
            const int64_t *list = weight ? a.rows : a.tokens;
            tensor_gather_rows(&tensors[i], list, weight ? rows : tokens, a.got);
            tensor_compare_rows(&tensors[i], a.got, wanted[i], weight ? rows : tokens, list,
                VERDICT_BITWISE, &result->tensors[i]);
        }
    }
    sample_free(&a);
    return status;
}

/* ---- baseline -----------------------------------------------------------------------------------
 */

static int against_baseline(const struct vocab_run *run, const struct checked_tensor *tensors,
    struct case_result *result, char *error, int size)
{
    struct vocab_options defaults = {.move = VOCAB_MOVE_AUTO};
    struct case_result scratch;
    struct vocab_run baseline = {.impl = vocab_impls[0],
        .options = &defaults,
        .inputs = run->inputs,
        .ranks = run->ranks,
        .collect = true};
    if (case_result_init(&scratch, run->ranks->count)) {
        snprintf(error, (size_t)size, "no host memory for the baseline's run");
        return -1;
    }
    int status = vocab_run(&baseline, &scratch);
    if (status)
        snprintf(
            error, (size_t)size, "baseline %s: %s", baseline.impl->name, baseline.failure.message);
    const void *wanted[3] = {baseline.outputs.loss, baseline.outputs.max, baseline.outputs.log_z};
    for (int i = 0; status == 0 && i < 3; i++)
        tensor_compare(&tensors[i], wanted[i], VERDICT_BITWISE, &result->tensors[i]);
    vocab_outputs_free(&baseline.outputs);
    case_result_free(&scratch);
    return status;
}

int vocab_check(struct vocab_checker *checker, struct vocab_run *run, struct vocab_inputs *inputs,
    enum case_check level, int64_t samples, struct case_result *result, char *error, int size)
{
    if (!launch_is_main() && level != CASE_CHECK_BASELINE)
        return 0; /* it has no outputs but its own; of the baseline it runs its ranks */
    struct vocab_order order;
    struct checked_tensor tensors[TENSORS];
    if (vocab_order_init(&order, inputs->shape.ranks)) {
        snprintf(error, (size_t)size, "no host memory for the order");
        return -1;
    }
    run->impl->order(&inputs->shape, run->options, &order);
    int count = list_tensors(run, &order, tensors);
    snprintf(error, (size_t)size, "no host memory for the inputs as arrays");
    int status = tensors_digest(tensors, count, result);
    if (status == 0 && (level == CASE_CHECK_REFERENCE || level == CASE_CHECK_SAMPLE))
        status = vocab_inputs_materialize(inputs);
    if (status == 0 && level == CASE_CHECK_REFERENCE)
        status = against_reference(checker, run, &order, tensors, count, result, error, size);
    else if (status == 0 && level == CASE_CHECK_SAMPLE)
        status = against_sample(run, &order, samples, tensors, count, result, error, size);
    else if (status == 0 && level == CASE_CHECK_BASELINE)
        status = against_baseline(run, tensors, result, error, size);
    if (level != CASE_CHECK_OFF)
        case_check_text(level, samples, result->against, sizeof result->against);
    vocab_order_free(&order);
    return status;
}

int vocab_bound(const struct vocab_run *run, const struct vocab_run *fast,
    struct case_result *result, char *error, int size)
{
    struct vocab_order order;
    struct checked_tensor tensors[TENSORS], of_fast[TENSORS];
    if (vocab_order_init(&order, run->inputs->shape.ranks)) {
        snprintf(error, (size_t)size, "no host memory for the order");
        return -1;
    }
    run->impl->order(&run->inputs->shape, run->options, &order);
    int count = list_tensors(run, &order, tensors);
    list_tensors(fast, &order, of_fast);
    vocab_order_free(&order);
    return products_bound(tensors, of_fast, count, result, error, size);
}
