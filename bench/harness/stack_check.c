/* The gate of the checkpoint-boundary problem. */
#include "bench/harness/stack_check.h"
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/products.h"
#include "bench/harness/tensor_check.h"
#include "device/launch.h"
#include "reference/stack.h"

#define TENSORS 6
#define SAMPLE_TOKENS 91 /* the stream of random numbers that picks them */

void stack_checker_free(struct stack_checker *checker)
{
    stack_outputs_free(&checker->want);
    *checker = (struct stack_checker){0};
}

/* Forward three products of N H F; backward the same three less one again, and six more. */
int64_t stack_check_operations(const struct stack_shape *shape, bool backward)
{
    return (backward ? 11 : 3) * stack_first_token(shape, shape->ranks) * shape->layers *
           shape->hidden * shape->ffn;
}

static int list_tensors(
    const struct stack_run *run, const struct stack_outputs *out, struct checked_tensor *tensors)
{
    const struct stack_shape *s = &run->inputs->shape;
    const int64_t layers = s->ranks * s->layers;
    const struct checked_tensor all[TENSORS] = {
        {"Y", s->dtype, 2, run->inputs->total, s->hidden, out->y, false, true},
        {"dX", s->dtype, 2, run->inputs->total, s->hidden, out->dx, false, true},
        {"dgain", DTYPE_F32, 2, layers, s->hidden, out->dgain, false, true},
        {"dWgate", DTYPE_F32, 2, layers * s->hidden, s->ffn, out->dgate, false, true},
        {"dWup", DTYPE_F32, 2, layers * s->hidden, s->ffn, out->dup, false, true},
        {"dWdown", DTYPE_F32, 2, layers * s->ffn, s->hidden, out->ddown, false, true}};
    const int count = run->backward ? TENSORS : 1;
    for (int i = 0; i < count; i++)
        tensors[i] = all[i];
    return count;
}

/* ---- reference --------------------------------------------------------------------------------
 */

static const void *rows_at(const struct stack_inputs *inputs, enum stack_tensor tensor, int64_t row)
{
    return (const char *)inputs->arrays[tensor] +
           row * inputs->shape.hidden * dtype_bytes(inputs->shape.dtype);
}

static struct ref_stack_problem problem_of(
    const struct stack_inputs *inputs, const void *x, const void *dy, int64_t tokens)
{
    return (struct ref_stack_problem){.tokens = tokens,
        .layers = inputs->shape.layers,
        .hidden = inputs->shape.hidden,
        .ffn = inputs->shape.ffn,
        .dtype = inputs->shape.dtype,
        .x = x,
        .dy = dy,
        .gain = inputs->arrays[STACK_GAIN],
        .gate = inputs->arrays[STACK_GATE],
        .up = inputs->arrays[STACK_UP],
        .down = inputs->arrays[STACK_DOWN]};
}

int stack_reference(const struct stack_inputs *inputs, bool backward, struct stack_outputs *want,
    char *error, int size)
{
    const struct stack_shape *s = &inputs->shape;
    const int64_t gains = s->layers * s->hidden, matrices = gains * s->ffn;
    snprintf(error, (size_t)size, "no host memory for the reference's result");
    int status = stack_outputs_alloc(want, s, backward);
    for (int r = 0; status == 0 && r < s->ranks; r++) {
        const int64_t first = stack_first_token(s, r);
        const int64_t at = first * s->hidden * dtype_bytes(s->dtype);
        struct ref_stack_problem problem = problem_of(inputs, rows_at(inputs, STACK_X, first),
            rows_at(inputs, STACK_DY, first), s->tokens[r]);
        struct ref_stack_result one = {.y = (char *)want->y + at};
        if (backward)
            one = (struct ref_stack_result){.y = (char *)want->y + at,
                .dx = (char *)want->dx + at,
                .dgain = want->dgain + r * gains,
                .dgate = want->dgate + r * matrices,
                .dup = want->dup + r * matrices,
                .ddown = want->ddown + r * matrices};
        status = ref_stack(&problem, &one, error, size);
    }
    if (status)
        stack_outputs_free(want);
    return status;
}

static void compare_all(const struct stack_run *run, const struct checked_tensor *tensors,
    int count, const struct stack_outputs *want, struct case_result *result)
{
    struct checked_tensor wanted[TENSORS];
    list_tensors(run, want, wanted);
    for (int i = 0; i < count; i++)
        tensor_compare(&tensors[i], wanted[i].got, VERDICT_BITWISE, &result->tensors[i]);
}

static int against_reference(struct stack_checker *checker, const struct stack_run *run,
    const struct checked_tensor *tensors, int count, struct case_result *result, char *error,
    int size)
{
    if (checker->inputs != run->inputs || (run->backward && !checker->backward)) {
        stack_checker_free(checker);
        if (stack_reference(run->inputs, run->backward, &checker->want, error, size))
            return -1;
        checker->inputs = run->inputs;
        checker->backward = run->backward;
    }
    compare_all(run, tensors, count, &checker->want, result);
    return 0;
}

/* ---- sample -----------------------------------------------------------------------------------
 */

/* Rows are independent: the reference runs the sampled tokens as a problem of their own. */
struct sample {
    int64_t *list;
    char *x, *dy, *y, *dx, *got;
    float *gradients;
};

static void sample_free(struct sample *s)
{
    free(s->list);
    free(s->x);
    free(s->dy);
    free(s->y);
    free(s->dx);
    free(s->got);
    free(s->gradients);
}

static bool sample_alloc(struct sample *s, int64_t samples, const struct stack_shape *shape)
{
    const size_t bytes = (size_t)(samples * shape->hidden * dtype_bytes(shape->dtype)) + 1;
    const size_t gradients = (size_t)(shape->layers * shape->hidden * (3 * shape->ffn + 1));
    *s = (struct sample){.list = malloc(((size_t)samples + 1) * sizeof *s->list),
        .x = malloc(bytes),
        .dy = malloc(bytes),
        .y = malloc(bytes),
        .dx = malloc(bytes),
        .got = malloc(bytes),
        .gradients = malloc(gradients * sizeof(float))};
    return s->list && s->x && s->dy && s->y && s->dx && s->got && s->gradients;
}

static int against_sample(const struct stack_run *run, int64_t samples,
    const struct checked_tensor *tensors, struct case_result *result, char *error, int size)
{
    const struct stack_inputs *inputs = run->inputs;
    const struct stack_shape *shape = &inputs->shape;
    const int64_t gains = shape->layers * shape->hidden, matrices = gains * shape->ffn;
    struct sample s;
    samples = samples < inputs->total ? samples : inputs->total;
    snprintf(error, (size_t)size, "no host memory for %lld samples", (long long)samples);
    int status = sample_alloc(&s, samples, shape) ? 0 : -1;
    if (status == 0) {
        struct checked_tensor rows = tensors[0];
        int64_t count = tensor_sample(s.list, samples, inputs->total, SAMPLE_TOKENS);
        rows.got = inputs->arrays[STACK_X];
        tensor_gather_rows(&rows, s.list, count, s.x);
        rows.got = inputs->arrays[STACK_DY];
        tensor_gather_rows(&rows, s.list, count, s.dy);
        struct ref_stack_problem problem = problem_of(inputs, s.x, s.dy, count);
        struct ref_stack_result want = {.y = s.y,
            .dx = run->backward ? s.dx : NULL,
            .dgain = s.gradients,
            .dgate = s.gradients + gains,
            .dup = s.gradients + gains + matrices,
            .ddown = s.gradients + gains + 2 * matrices};
        status = ref_stack(&problem, &want, error, size);
        for (int i = 0; status == 0 && i < (run->backward ? 2 : 1); i++) {
            tensor_gather_rows(&tensors[i], s.list, count, s.got);
            tensor_compare_rows(&tensors[i], s.got, i ? s.dx : s.y, count, s.list, VERDICT_BITWISE,
                &result->tensors[i]);
        }
    }
    sample_free(&s);
    return status;
}

/* ---- baseline ---------------------------------------------------------------------------------
 */

static int against_baseline(const struct stack_run *run, const struct checked_tensor *tensors,
    int count, struct case_result *result, char *error, int size)
{
    struct stack_options defaults = {.budget = {.bytes = 0}};
    struct case_result scratch;
    struct stack_run baseline = {.impl = stack_impls[0],
        .options = &defaults,
        .inputs = run->inputs,
        .backward = run->backward,
        .steps = 1,
        .ranks = run->ranks,
        .collect = true};
    if (case_result_init(&scratch, run->ranks->count)) {
        snprintf(error, (size_t)size, "no host memory for the baseline's run");
        return -1;
    }
    int status = stack_run(&baseline, &scratch);
    if (status)
        snprintf(
            error, (size_t)size, "baseline %s: %s", baseline.impl->name, baseline.failure.message);
    else
        compare_all(run, tensors, count, &baseline.outputs, result);
    stack_outputs_free(&baseline.outputs);
    case_result_free(&scratch);
    return status;
}

int stack_check(struct stack_checker *checker, const struct stack_run *run, enum case_check level,
    int64_t samples, struct case_result *result, char *error, int size)
{
    if (!launch_is_main() && level != CASE_CHECK_BASELINE)
        return 0; /* it has no outputs but its own; of the baseline it runs its ranks */
    struct checked_tensor tensors[TENSORS];
    int count = list_tensors(run, &run->outputs, tensors);
    snprintf(error, (size_t)size, "no host memory for digests");
    int status = tensors_digest(tensors, count, result);
    if (status == 0 && level == CASE_CHECK_REFERENCE)
        status = against_reference(checker, run, tensors, count, result, error, size);
    else if (status == 0 && level == CASE_CHECK_SAMPLE)
        status = against_sample(run, samples, tensors, result, error, size);
    else if (status == 0 && level == CASE_CHECK_BASELINE)
        status = against_baseline(run, tensors, count, result, error, size);
    if (level != CASE_CHECK_OFF)
        case_check_text(level, samples, result->against, sizeof result->against);
    return status;
}

int stack_bound(const struct stack_run *run, const struct stack_run *fast,
    struct case_result *result, char *error, int size)
{
    struct checked_tensor tensors[TENSORS], of_fast[TENSORS];
    int count = list_tensors(run, &run->outputs, tensors);
    list_tensors(fast, &fast->outputs, of_fast);
    return products_bound(tensors, of_fast, count, result, error, size);
}
