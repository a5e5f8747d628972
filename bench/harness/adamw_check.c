/* The gate of the optimizer program: bytes against the reference, values against FP64. Nothing here
 * is declared by an implementation: the problem has one order. */
#include "bench/harness/adamw_check.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "device/launch.h"
#include "probe/digest.h"
#include "probe/seed.h"

enum { ARRAYS = 4 };
static const char *const array_names[ARRAYS] = {"p", "m", "v", "w"};
static const enum dtype array_types[ARRAYS] = {DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_BF16};

static const void *array_of(const struct adamw_outputs *outputs, int array)
{
    const void *const arrays[ARRAYS] = {outputs->p, outputs->m, outputs->v, outputs->w};
    return arrays[array];
}

/* Operations on an element in one step. */
#define OPERATIONS 10

int64_t adamw_check_operations(int64_t held, int64_t steps)
{
    double operations = (double)held * (double)steps * OPERATIONS;
    return operations < 9e18 ? (int64_t)operations : INT64_MAX;
}

static int no_memory(char *error, int size)
{
    snprintf(error, (size_t)size, "no host memory for the reference");
    return -1;
}

static int add_digests(const struct adamw_run *run, struct case_result *result)
{
    int64_t held = adamw_inputs_held(run->inputs);
    for (int i = 0; i < ARRAYS; i++) {
        struct case_tensor *out = case_result_tensor(result, array_names[i]);
        struct digest *d = digest_create();
        if (!out || !d)
            return -1;
        if (array_types[i] == DTYPE_BF16)
            digest_bf16(d, array_of(&run->outputs, i), held);
        else
            digest_f32(d, array_of(&run->outputs, i), held);
        digest_finish(d, out->digest);
        out->verdict = VERDICT_OFF;
    }
    return 0;
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* The tensor that holds this element of the held order. */
static int64_t tensor_of(const struct adamw_inputs *inputs, int64_t element)
{
    int64_t low = 0, high = inputs->tensors - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (inputs->held_first[middle] <= element)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* "layers.0.router[17], p[123456]: got ..." for a difference at this element of the held order. */
static void describe(const struct adamw_inputs *inputs, int array,
    struct check_difference difference, int64_t element, struct case_tensor *out)
{
    char name[160];
    int64_t tensor = tensor_of(inputs, element);
    int64_t shape[1] = {adamw_inputs_held(inputs)};
    snprintf(name, sizeof name, "%s[%" PRId64 "], %s", inputs->tensor[tensor].name,
        element - inputs->held_first[tensor], array_names[array]);
    difference.first = element;
    check_describe(name, 1, shape, &difference, out->fault, sizeof out->fault);
}

/* `count` elements; element i of both is list[i] of the held order (NULL: i). */
static void compare(const struct adamw_inputs *inputs, int array, const void *got, const void *want,
    int64_t count, const int64_t *list, struct case_tensor *out)
{
    struct check_difference difference;
    out->verdict = VERDICT_BITWISE;
    if (check_equal(array_types[array], got, want, count, &difference))
        return;
    out->verdict = VERDICT_MISMATCH;
    describe(inputs, array, difference, list ? list[difference.first] : difference.first, out);
}

static void fail_tensor(struct case_tensor *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void fail_tensor(struct case_tensor *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(out->fault, sizeof out->fault, format, args);
    va_end(args);
    out->verdict = VERDICT_MISMATCH;
}

/* ---- the reference's problem --------------------------------------------------------------- */

static struct ref_adamw_problem problem_of(const struct adamw_run *run)
{
    const struct adamw_options *options = run->options;
    struct ref_adamw_problem problem = {.ranks = run->inputs->ranks,
        .g_type = adamw_gradient_dtype(options->gradients),
        .scale = options->scale,
        .clip = options->clip,
        .propagate = options->nonfinite == ADAMW_PROPAGATE};
    for (int group = 0; group < ADAMW_GROUPS; group++) {
        const struct adamw_hyper *hyper = &options->hyper[group];
        problem.hyper[group] =
            (struct ref_adamw_hyper){hyper->lr, hyper->b1, hyper->b2, hyper->eps, hyper->wd};
    }
    return problem;
}

/* The whole problem in held order: every rank's share lies in the same arrays. */
struct whole {
    struct adamw_outputs now, before; /* before: the state before the last step taken */
    void *g;
    struct ref_adamw_tensor *tensor; /* [ranks * tensors] */
    struct ref_adamw_share *share;   /* [ranks] */
};

static void whole_free(struct whole *w)
{
    adamw_outputs_free(&w->now);
    adamw_outputs_free(&w->before);
    free(w->g);
    free(w->tensor);
    free(w->share);
}

static int whole_alloc(struct whole *w, const struct adamw_inputs *inputs)
{
    int64_t held = adamw_inputs_held(inputs);
    *w = (struct whole){.g = malloc((size_t)(held + 1) * sizeof(float)),
        .tensor = calloc((size_t)(inputs->ranks * inputs->tensors), sizeof *w->tensor),
        .share = calloc((size_t)inputs->ranks, sizeof *w->share)};
    if (!w->g || !w->tensor || !w->share || adamw_outputs_alloc(&w->now, held) ||
        adamw_outputs_alloc(&w->before, held))
        return -1;
    for (int r = 0; r < inputs->ranks; r++) {
        struct adamw_shape shape;
        struct ref_adamw_tensor *tensor = w->tensor + r * inputs->tensors;
        if (adamw_shape_init(&shape, inputs->tensor, inputs->tensors, inputs->world, r))
            return -1;
        for (int64_t i = 0; i < inputs->tensors; i++)
            tensor[i] = (struct ref_adamw_tensor){
                .first = inputs->held_first[i] + shape.part[i].global_first,
                .count = shape.part[i].count,
                .group = (int)inputs->tensor[i].group};
        adamw_shape_free(&shape);
        w->share[r] = (struct ref_adamw_share){.tensors = inputs->tensors,
            .tensor = tensor,
            .g = w->g,
            .p = w->now.p,
            .m = w->now.m,
            .v = w->now.v,
            .w = w->now.w};
    }
    return 0;
}

static int64_t tensor_held(const struct adamw_inputs *inputs, int64_t tensor)
{
    return inputs->held_first[tensor + 1] - inputs->held_first[tensor];
}

static void whole_load_state(struct whole *w, const struct adamw_inputs *inputs)
{
    float *const arrays[] = {w->now.p, w->now.m, w->now.v};
    for (int64_t i = 0; i < inputs->tensors; i++)
        for (int array = 0; array < ADAMW_ARRAYS; array++)
            adamw_inputs_fill(inputs, (enum adamw_value)array, 0, i, 0, tensor_held(inputs, i),
                arrays[array] + inputs->held_first[i]);
    for (int64_t i = 0; i < adamw_inputs_held(inputs); i++)
        w->now.w[i] = f32_to_bf16(w->now.p[i]);
}

static void whole_load_gradients(
    struct whole *w, const struct adamw_inputs *inputs, enum dtype type, int64_t step)
{
    for (int64_t i = 0; i < inputs->tensors; i++) {
        int64_t first = inputs->held_first[i], count = tensor_held(inputs, i);
        if (type == DTYPE_BF16)
            adamw_inputs_fill_bf16(inputs, step, i, 0, count, (uint16_t *)w->g + first);
        else
            adamw_inputs_fill(inputs, ADAMW_VALUE_G, step, i, 0, count, (float *)w->g + first);
    }
}

static void whole_keep(struct whole *w, int64_t held)
{
    memcpy(w->before.p, w->now.p, (size_t)held * sizeof(float));
    memcpy(w->before.m, w->now.m, (size_t)held * sizeof(float));
    memcpy(w->before.v, w->now.v, (size_t)held * sizeof(float));
}

/* ---- reference ----------------------------------------------------------------------------- */

static bool same_bits(double a, double b)
{
    return f64_bits(a) == f64_bits(b) || (isnan(a) && isnan(b));
}

/* What the run reported of a step, against the reference. A run that scanned nothing reports
 * neither norm nor count. */
static void compare_report(const struct adamw_report *got, const struct ref_adamw_report *want,
    bool scanned, int64_t step, struct case_tensor *out)
{
    if (got->skipped != want->skipped)
        fail_tensor(out, "step %" PRId64 ": %s, the reference %s it", step + 1,
            got->skipped ? "was skipped" : "was taken", want->skipped ? "skips" : "takes");
    else if (scanned && (!same_bits(got->norm, want->norm) || got->nonfinite != want->nonfinite))
        fail_tensor(out,
            "step %" PRId64 ": norm %.17g and %" PRId64
            " gradients not finite, reference %.17g and "
            "%" PRId64,
            step + 1, got->norm, got->nonfinite, want->norm, want->nonfinite);
    else if (want->first_rank == 0 && scanned && got->first_tensor != want->first_tensor)
        fail_tensor(out,
            "step %" PRId64 ": first tensor not finite %" PRId64 ", reference %" PRId64, step + 1,
            got->first_tensor, want->first_tensor);
    else if (!same_bits(got->factor, want->factor))
        fail_tensor(out, "step %" PRId64 ": gradient factor %.17g, reference %.17g", step + 1,
            got->factor, want->factor);
}

/* Values of FP64 and their bounds for a piece of a tensor. */
#define PIECE 4096
struct piece {
    double p[PIECE], p_bound[PIECE], m[PIECE], m_bound[PIECE], v[PIECE], v_bound[PIECE];
};

static void demand_bound(const char *name, const float *got, const double *value,
    const double *bound, int64_t count, int64_t element, struct case_tensor *out)
{
    int64_t first;
    double worst;
    if (out->verdict != VERDICT_MISMATCH &&
        !check_bounded(DTYPE_F32, got, value, bound, count, &first, &worst))
        fail_tensor(out, "%s: element %" PRId64 " is %g times its bound from the FP64 reference",
            name, element + first, worst);
}

/* The last step again in FP64, from the state before it, piece by piece. */
static int demand_bounds(const struct whole *w, const struct ref_adamw_problem *problem,
    double factor, const struct adamw_run *run, struct case_result *result)
{
    const struct adamw_inputs *inputs = run->inputs;
    struct piece *piece = malloc(sizeof *piece);
    if (!piece)
        return -1;
    for (int64_t i = 0; i < inputs->tensors; i++)
        for (int64_t at = inputs->held_first[i]; at < inputs->held_first[i + 1]; at += PIECE) {
            int64_t left = inputs->held_first[i + 1] - at, count = left < PIECE ? left : PIECE;
            struct ref_adamw_tensor tensor = {0, count, (int)inputs->tensor[i].group};
            struct ref_adamw_share share = {.tensors = 1,
                .tensor = &tensor,
                .g = (const char *)w->g + at * dtype_bytes(problem->g_type),
                .p = w->before.p + at,
                .m = w->before.m + at,
                .v = w->before.v + at};
            struct ref_adamw_problem one = *problem;
            one.ranks = 1;
            one.share = &share;
            ref_adamw_f64(&one, 0, factor,
                &(struct ref_adamw_f64){
                    piece->p, piece->p_bound, piece->m, piece->m_bound, piece->v, piece->v_bound});
            demand_bound(
                "p", run->outputs.p + at, piece->p, piece->p_bound, count, at, &result->tensors[0]);
            demand_bound(
                "m", run->outputs.m + at, piece->m, piece->m_bound, count, at, &result->tensors[1]);
            demand_bound(
                "v", run->outputs.v + at, piece->v, piece->v_bound, count, at, &result->tensors[2]);
        }
    free(piece);
    return 0;
}

static int against_reference(const struct adamw_run *run, struct case_result *result)
{
    const struct adamw_inputs *inputs = run->inputs;
    struct ref_adamw_problem problem = problem_of(run);
    struct ref_adamw_report report = {.skipped = true};
    struct whole w;
    int64_t held = adamw_inputs_held(inputs), t = run->first_step;
    bool scanned = !adamw_starts_early(run->options);
    int status = whole_alloc(&w, inputs);
    if (status == 0)
        whole_load_state(&w, inputs);
    problem.share = w.share;
    for (int64_t step = 0; step < run->steps && status == 0; step++) {
        problem.t = t;
        whole_load_gradients(&w, inputs, problem.g_type, step);
        whole_keep(&w, held);
        ref_adamw_step(&problem, &report);
        t += !report.skipped;
        compare_report(&run->reports[step], &report, scanned, step, &result->tensors[0]);
    }
    for (int i = 0; i < ARRAYS && status == 0; i++)
        if (result->tensors[i].verdict != VERDICT_MISMATCH)
            compare(inputs, i, array_of(&run->outputs, i), array_of(&w.now, i), held, NULL,
                &result->tensors[i]);
    if (status == 0 && !report.skipped)
        status = demand_bounds(&w, &problem, report.factor, run, result);
    whole_free(&w);
    return status;
}

/* ---- sample -------------------------------------------------------------------------------- */

#define SAMPLE_SEED 20260914
#define SAMPLE_STREAM 101

static int compare_index(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The first, the last, and random others of [0, held): ascending, distinct. Returns how many. */
static int64_t choose(int64_t *list, int64_t wanted, int64_t held)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < wanted; i++)
        list[i] = wanted == held ? i
                  : i == 0       ? 0
                  : i == 1       ? held - 1
                                 : seed_index(SAMPLE_SEED, SAMPLE_STREAM, i, held);
    qsort(list, (size_t)wanted, sizeof *list, compare_index);
    for (int64_t i = 0; i < wanted; i++)
        if (!kept || list[kept - 1] != list[i])
            list[kept++] = list[i];
    return kept;
}

/* Each sampled element is a tensor of its own. */
struct sample {
    int64_t count;
    int64_t *list;
    struct adamw_outputs now, got;
    float *g;
    struct ref_adamw_tensor *tensor;
};

static void sample_free(struct sample *s)
{
    free(s->list);
    adamw_outputs_free(&s->now);
    adamw_outputs_free(&s->got);
    free(s->g);
    free(s->tensor);
}

static int sample_alloc(struct sample *s, int64_t wanted)
{
    size_t count = (size_t)wanted + 1;
    *s = (struct sample){.list = calloc(count, sizeof *s->list),
        .g = calloc(count, sizeof *s->g),
        .tensor = calloc(count, sizeof *s->tensor)};
    return s->list && s->g && s->tensor && !adamw_outputs_alloc(&s->now, wanted) &&
                   !adamw_outputs_alloc(&s->got, wanted)
               ? 0
               : -1;
}

static void sample_load(struct sample *s, const struct adamw_run *run)
{
    const struct adamw_inputs *inputs = run->inputs;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t at = s->list[i], tensor = tensor_of(inputs, at);
        int64_t element = at - inputs->held_first[tensor];
        adamw_inputs_fill(inputs, ADAMW_VALUE_P, 0, tensor, element, 1, &s->now.p[i]);
        adamw_inputs_fill(inputs, ADAMW_VALUE_M, 0, tensor, element, 1, &s->now.m[i]);
        adamw_inputs_fill(inputs, ADAMW_VALUE_V, 0, tensor, element, 1, &s->now.v[i]);
        s->tensor[i] = (struct ref_adamw_tensor){i, 1, (int)inputs->tensor[tensor].group};
        s->got.p[i] = run->outputs.p[at];
        s->got.m[i] = run->outputs.m[at];
        s->got.v[i] = run->outputs.v[at];
        s->got.w[i] = run->outputs.w[at];
        s->now.w[i] = f32_to_bf16(s->now.p[i]);
    }
}

static void sample_load_gradients(struct sample *s, const struct adamw_run *run, int64_t step)
{
    const struct adamw_inputs *inputs = run->inputs;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t tensor = tensor_of(inputs, s->list[i]);
        float g;
        adamw_inputs_fill(
            inputs, ADAMW_VALUE_G, step, tensor, s->list[i] - inputs->held_first[tensor], 1, &g);
        s->g[i] = run->options->gradients == ADAMW_DEVICE_BF16 ? bf16_to_f32(f32_to_bf16(g)) : g;
    }
}

/* Steps with the factor that the run reports: the norm behind it needs every gradient, and is not
 * recomputed here. */
static int against_sample(const struct adamw_run *run, int64_t samples, struct case_result *result)
{
    int64_t held = adamw_inputs_held(run->inputs), t = run->first_step;
    struct ref_adamw_problem problem = problem_of(run);
    struct ref_adamw_report report;
    struct sample s;
    samples = samples < held ? samples : held;
    int status = sample_alloc(&s, samples);
    if (status == 0) {
        s.count = choose(s.list, samples, held);
        sample_load(&s, run);
        struct ref_adamw_share share = {.tensors = s.count,
            .tensor = s.tensor,
            .g = s.g,
            .p = s.now.p,
            .m = s.now.m,
            .v = s.now.v,
            .w = s.now.w};
        problem.ranks = 1;
        problem.share = &share;
        problem.g_type = DTYPE_F32;
        problem.clip = 0;
        problem.propagate = true;
        for (int64_t step = 0; step < run->steps; step++) {
            if (run->reports[step].skipped)
                continue;
            problem.t = t++;
            problem.scale = run->reports[step].factor;
            sample_load_gradients(&s, run, step);
            ref_adamw_step(&problem, &report);
        }
        for (int i = 0; i < ARRAYS; i++)
            compare(run->inputs, i, array_of(&s.got, i), array_of(&s.now, i), s.count, s.list,
                &result->tensors[i]);
    }
    sample_free(&s);
    return status;
}

/* ---- baseline ------------------------------------------------------------------------------ */

static int against_baseline(
    const struct adamw_run *run, struct case_result *result, char *error, int size)
{
    struct case_result scratch;
    struct adamw_run baseline = *run;
    baseline.impl = adamw_impls[0];
    baseline.timed = false;
    baseline.collect = true;
    baseline.shuffle = 0;
    if (case_result_init(&scratch, run->ranks->count))
        return no_memory(error, size);
    int status = adamw_run(&baseline, &scratch);
    if (status)
        snprintf(
            error, (size_t)size, "baseline %s: %s", baseline.impl->name, baseline.failure.message);
    for (int i = 0; i < ARRAYS && status == 0; i++)
        compare(run->inputs, i, array_of(&run->outputs, i), array_of(&baseline.outputs, i),
            adamw_inputs_held(run->inputs), NULL, &result->tensors[i]);
    adamw_run_free(&baseline);
    case_result_free(&scratch);
    return status;
}

int adamw_check(const struct adamw_run *run, enum case_check level, int64_t samples,
    struct case_result *result, char *error, int size)
{
    if (!launch_is_main() && level != CASE_CHECK_BASELINE)
        return 0; /* it has no outputs but its own; of the baseline it runs its ranks */
    int status = add_digests(run, result);
    no_memory(error, size);
    if (status == 0 && level == CASE_CHECK_REFERENCE)
        status = against_reference(run, result);
    else if (status == 0 && level == CASE_CHECK_SAMPLE)
        status = against_sample(run, samples, result);
    else if (status == 0 && level == CASE_CHECK_BASELINE)
        status = against_baseline(run, result, error, size);
    if (level != CASE_CHECK_OFF)
        case_check_text(level, samples, result->against, sizeof result->against);
    if (status == 0 && run->host_memory_differs)
        fail_tensor(&result->tensors[0], "%s", run->host_memory_fault);
    return status;
}
