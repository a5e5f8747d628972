/* AdamW and the gradient scan, once per instruction set: plain loops that the compiler vectorises.
 *
 * What limits AdamW is memory, 30 bytes for each parameter: the exact square root and division hide
 * behind it. The state is read and written in place, so its plain stores cost nothing extra. The
 * BF16 weights are only written; a plain store would first read the line, so they go through a
 * small buffer and leave by non-temporal stores where the architecture has them. */
#include "kernels/adamw_variants.h"
#include "kernels/isa_variants.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- AdamW --------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) float gradient_at(
    const void *g, enum dtype type, int64_t i)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)g)[i]) : ((const float *)g)[i];
}

static inline __attribute__((always_inline)) void update_typed(const struct adamw_constants *k,
    enum dtype g_type, int64_t count, float *restrict p, float *restrict m, float *restrict v,
    const void *restrict g, uint16_t *restrict w)
{
    for (int64_t i = 0; i < count; i++) {
        p[i] = adamw_element(k, p[i], &m[i], &v[i], gradient_at(g, g_type, i));
        w[i] = f32_to_bf16(p[i]);
    }
}

/* Elements first .. first + count - 1; their weights go to w[0 .. count). */
static void update_run(
    const struct adamw_args *args, int64_t first, int64_t count, uint16_t *restrict w)
{
    const struct adamw_constants constants = args->constants; /* a copy that no store can change */
    float *p = args->p + first, *m = args->m + first, *v = args->v + first;
    if (args->g_type == DTYPE_BF16)
        update_typed(&constants, DTYPE_BF16, count, p, m, v, (const uint16_t *)args->g + first, w);
    else
        update_typed(&constants, DTYPE_F32, count, p, m, v, (const float *)args->g + first, w);
}

#ifdef __SSE2__

#define TILE 512      /* elements whose BF16 values wait in the buffer */
#define LINE_BYTES 64 /* of a cache line */
#define LINE (LINE_BYTES / (int64_t)sizeof(uint16_t))

/* `to` is on a cache line, count is a multiple of LINE. */
static void stream_weights(uint16_t *to, const uint16_t *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += 8)
        _mm_stream_si128((void *)(to + i), _mm_load_si128((const void *)(from + i)));
}

static void update(const struct adamw_args *args)
{
    _Alignas(LINE_BYTES) uint16_t tile[TILE];
    int64_t before_line = (int64_t)(-(uintptr_t)args->w % LINE_BYTES / sizeof *args->w);
    int64_t done = before_line < args->count ? before_line : args->count;
    update_run(args, 0, done, args->w);
    while (args->count - done >= LINE) {
        int64_t lines = (args->count - done) / LINE * LINE;
        int64_t count = lines < TILE ? lines : TILE;
        update_run(args, done, count, tile);
        stream_weights(args->w + done, tile, count);
        done += count;
    }
    update_run(args, done, args->count - done, args->w + done);
    _mm_sfence(); /* what tells another thread of the end does not order non-temporal stores */
}

#else

static void update(const struct adamw_args *args)
{
    update_run(args, 0, args->count, args->w);
}

#endif

/* ---- the gradient scan --------------------------------------------------------------------- */

/* Adds the first `width` lanes' elements of one row. */
static inline __attribute__((always_inline)) void scan_row(const void *g, enum dtype g_type,
    int64_t first, int64_t width, float scale, double *restrict lanes, int32_t *restrict nonfinite)
{
    for (int64_t lane = 0; lane < width; lane++) {
        float x = gradient_at(g, g_type, first + lane);
        lanes[lane] += (double)x * (double)x;
        nonfinite[lane] += (f32_bits(x * scale) & 0x7f800000u) == 0x7f800000u;
    }
}

static inline __attribute__((always_inline)) struct gradient_scan_block scan_typed(
    const void *g, enum dtype g_type, int64_t count, float scale)
{
    double lanes[ARITH_LANES] = {0.0};
    int32_t nonfinite[ARITH_LANES] = {0};
    int64_t whole = count / ARITH_LANES * ARITH_LANES;
    for (int64_t first = 0; first < whole; first += ARITH_LANES)
        scan_row(g, g_type, first, ARITH_LANES, scale, lanes, nonfinite);
    scan_row(g, g_type, whole, count - whole, scale, lanes, nonfinite);
    for (int distance = ARITH_LANES / 2; distance; distance /= 2)
        for (int lane = 0; lane < distance; lane++) {
            lanes[lane] = lanes[lane] + lanes[lane + distance];
            nonfinite[lane] += nonfinite[lane + distance];
        }
    struct gradient_scan_block block = {lanes[0], nonfinite[0]};
    return block;
}

static struct gradient_scan_block scan(const void *g, enum dtype g_type, int64_t count, float scale)
{
    return g_type == DTYPE_BF16 ? scan_typed(g, DTYPE_BF16, count, scale)
                                : scan_typed(g, DTYPE_F32, count, scale);
}

extern const struct adamw_functions ISA_VARIANT(adamw_functions);
const struct adamw_functions ISA_VARIANT(adamw_functions) = {update, scan};
