/* The way of a case's products, and the verdict of the fast path. */
#include "bench/harness/products.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "device/launch.h"
#include "probe/digest.h"

/* NULL without CUDA. */
void gemm_fast_use(enum gemm_path path, int64_t tiles) __attribute__((weak));
int gemm_fast_tally(struct gemm_tally *tally) __attribute__((weak));

static void take(enum gemm_path path, int64_t tiles)
{
    if (gemm_fast_use)
        gemm_fast_use(path, tiles);
}

enum gemm_path products_path(const struct case_options *options)
{
    bool fast = options->device_kind == DEV_CUDA && options->gemm == GEMM_PATH_FAST &&
                options->dtype == DTYPE_BF16;
    return fast ? GEMM_PATH_FAST : GEMM_PATH_EXACT;
}

void products_gate(const struct case_options *options)
{
    take(options->check == CASE_CHECK_OFF ? products_path(options) : GEMM_PATH_EXACT, 0);
}

bool products_bounds(const struct case_options *options)
{
    return products_path(options) == GEMM_PATH_FAST && options->check != CASE_CHECK_OFF;
}

void products_audit(int64_t samples)
{
    take(GEMM_PATH_AUDITED, samples);
}

void products_time(const struct case_options *options)
{
    take(products_path(options), 0);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static double value_at(enum dtype type, const void *tensor, int64_t index)
{
    return type == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)tensor)[index])
                              : (double)((const float *)tensor)[index];
}

/* |fast - exact| / |exact|, both as Euclidean norms. NaN where a value is not finite. */
static double distance(const struct checked_tensor *exact, const struct checked_tensor *fast)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < exact->rows * exact->columns; i++) {
        double want = value_at(exact->type, exact->got, i);
        double off = value_at(fast->type, fast->got, i) - want;
        error += off * off;
        size += want * want;
    }
    return error == 0 ? 0 : sqrt(error / size);
}

static int digest_of(const struct checked_tensor *tensor, char text[DIGEST_TEXT])
{
    struct digest *d = digest_create();
    if (!d)
        return -1;
    if (tensor->type == DTYPE_BF16)
        digest_bf16(d, tensor->got, tensor->rows * tensor->columns);
    else
        digest_f32(d, tensor->got, tensor->rows * tensor->columns);
    digest_finish(d, text);
    return 0;
}

static int bound_tensor(const struct checked_tensor *exact, const struct checked_tensor *fast,
    const struct case_products *products, struct case_tensor *out)
{
    out->exact_verdict = out->verdict;
    memcpy(out->exact_digest, out->digest, sizeof out->exact_digest);
    out->distance = distance(exact, fast);
    if (digest_of(fast, out->digest))
        return -1;
    if (out->verdict == VERDICT_OFF) /* the exact one was not compared either */
        return 0;
    out->verdict = products->inside ? VERDICT_BOUNDED : VERDICT_MISMATCH;
    if (!products->inside)
        snprintf(out->fault, sizeof out->fault,
            "%s: %" PRId64 " of %" PRId64 " elements of products on the fast path are outside "
            "their bound of the exact ones, by up to %g times",
            out->name, products->outside, products->elements, products->worst);
    return 0;
}

static void keep(const struct gemm_tally *tally, struct case_products *products)
{
    *products = (struct case_products){.present = true,
        .library = tally->library,
        .own = tally->own,
        .odd = tally->odd,
        .exact = tally->exact,
        .elements = tally->elements,
        .outside = tally->outside,
        .worst = tally->worst};
}

bool products_count(const struct case_options *options, struct case_products *products)
{
    struct gemm_tally tally;
    if (products_path(options) != GEMM_PATH_FAST || !gemm_fast_tally || gemm_fast_tally(&tally))
        return false;
    keep(&tally, products);
    return true;
}

int products_bound(const struct checked_tensor *exact, const struct checked_tensor *fast, int count,
    struct case_result *result, char *error, int size)
{
    struct gemm_tally tally = {.elements = 0};
    struct case_products *products = &result->products;
    bool told = gemm_fast_tally && !gemm_fast_tally(&tally);
    keep(&tally, products);
    if (!launch_all(told && !tally.unaudited)) {
        snprintf(error, (size_t)size,
            told ? "%" PRId64 " products on the fast path found no device memory for their audit"
                 : "the tally of the fast path cannot be read",
            tally.unaudited);
        return -1;
    }
    products->inside = launch_all(!tally.outside);
    if (!launch_is_main())
        return 0;
    snprintf(error, (size_t)size, "no host memory for digests");
    for (int i = 0; i < count; i++)
        if (bound_tensor(&exact[i], &fast[i], products, &result->tensors[i]))
            return -1;
    return 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

void products_text(const struct case_products *products, char *text, int size)
{
    snprintf(text, (size_t)size, "at most %.2g%% of the bound", 100 * products->worst);
}

void products_note(const struct case_products *products, char *text, int size)
{
    int used = snprintf(text, (size_t)size, "products on tensor cores: %" PRId64,
        products->library + products->own + products->odd);
    if (products->odd && used < size)
        used += snprintf(text + used, (size_t)(size - used),
            ", %" PRId64 " of rows that are no multiples of 16 bytes", products->odd);
    if (products->exact && used < size)
        snprintf(text + used, (size_t)(size - used), "; %" PRId64 " of FP32 by BF16 stayed exact",
            products->exact);
}
