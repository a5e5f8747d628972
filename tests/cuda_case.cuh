/* One launch of a kernel by its CUDA function and by its CPU function, from equal bytes, and the
 * comparison of all that they leave: results, inputs, and what lies between and behind them.
 *
 * A case is a struct of arguments, arrays, and which pointer of the arguments points where. On the
 * device every array is an allocation of its own of exactly its size, so that a sanitizer of the
 * device or of the emulator sees the first byte too far. */
#pragma once
#include "kernels/launch.cuh"
extern "C" {
#include "device/device.h"
#include "kernels/arith.h"
#include "tests/tap.h"
}

enum { CASE_ARRAYS = 12, CASE_POINTERS = 16, CASE_WORDS_SHOWN = 3 };

/* What an array holds, for filling and for comparing: every NaN is one NaN. */
enum content { CONTENT_F32, CONTENT_BF16, CONTENT_BYTES };

struct case_array {
    enum content content;
    int64_t bytes;
    char *host;   /* owned; what the CPU function works on */
    char *device; /* owned */
};

struct case_pointer {
    char *field; /* of the arguments */
    int array;
    int64_t offset_bytes;
};

struct cuda_case {
    const struct kernel *kernel;
    void *args;
    struct case_array arrays[CASE_ARRAYS];
    int array_count;
    struct case_pointer pointers[CASE_POINTERS];
    int pointer_count;
    int skew; /* elements by which every array of a case begins past 16-byte alignment */
};

/* A test that cannot run its cases says so and ends. */
[[noreturn]] static inline void give_up(const char *what, cudaError_t error)
{
    printf("Bail out! %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static inline void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        give_up(what, error);
}

/* ---- values ---------------------------------------------------------------------------------- */

static inline uint32_t mixed(uint32_t bits)
{
    bits *= 2654435761u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return bits;
}

/* Ordinary: of many magnitudes, so that another order of a sum gives other bits. Special: among
 * them zeros of both signs, infinities, NaN and denormals, one element in `every`. */
static inline float value_at(uint32_t index, int every)
{
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-45f,
        3.4e38f, 88.7f, -103.9f, -104.5f, 1.17549435e-38f, -0.0f};
    const uint32_t bits = mixed(index);
    if (every && mixed(bits) % (uint32_t)every == 0)
        return specials[mixed(bits + 7) % (sizeof specials / sizeof *specials)];
    return ldexpf((float)(int32_t)bits, -31 + (int)(bits % 13) - 6);
}

/* ---- making a case --------------------------------------------------------------------------- */

static inline int element_bytes_of(enum content content)
{
    return content == CONTENT_F32 ? 4 : content == CONTENT_BF16 ? 2 : 1;
}

/* An array of `count` elements (bytes for CONTENT_BYTES, which begin as zeros). */
static inline int add_array(
    struct cuda_case *c, enum content content, int64_t count, uint32_t seed, int every)
{
    struct case_array *array = &c->arrays[c->array_count];
    const int64_t skew = content == CONTENT_BYTES ? 0 : c->skew;
    array->content = content;
    array->bytes = (count + skew) * element_bytes_of(content);
    array->host = (char *)calloc((size_t)array->bytes + 1, 1);
    array->device = NULL;
    if (!array->host)
        give_up("no memory for a case", cudaErrorMemoryAllocation);
    for (int64_t i = 0; content != CONTENT_BYTES && i < count + skew; i++) {
        const float value = value_at(seed * 1000003u + (uint32_t)i, every);
        if (content == CONTENT_F32)
            ((float *)array->host)[i] = value;
        else
            ((uint16_t *)array->host)[i] = f32_to_bf16(value);
    }
    return c->array_count++;
}

static inline int add_typed(
    struct cuda_case *c, enum dtype type, int64_t count, uint32_t seed, int every)
{
    return add_array(c, type == DTYPE_BF16 ? CONTENT_BF16 : CONTENT_F32, count, seed, every);
}

/* An array whose bytes the test gives. */
static inline int add_bytes(struct cuda_case *c, const void *from, int64_t bytes)
{
    const int array = add_array(c, CONTENT_BYTES, bytes, 0, 0);
    if (bytes)
        memcpy(c->arrays[array].host, from, (size_t)bytes);
    return array;
}

/* The pointer `field` of the arguments points to element `at` of the array. */
template <typename Field>
static inline void point_at(struct cuda_case *c, Field *field, int array, int64_t at)
{
    const struct case_array *a = &c->arrays[array];
    const int64_t skew = a->content == CONTENT_BYTES ? 0 : c->skew;
    struct case_pointer *pointer = &c->pointers[c->pointer_count++];
    pointer->field = (char *)field;
    pointer->array = array;
    pointer->offset_bytes = (at + skew) * element_bytes_of(a->content);
}

template <typename Field> static inline void point(struct cuda_case *c, Field *field, int array)
{
    point_at(c, field, array, 0);
}

/* Starts a case of a kernel and its zeroed arguments, which the caller fills. */
template <typename Args>
static inline struct cuda_case begin_case(const struct kernel *kernel, Args *args, int skew)
{
    struct cuda_case c = {};
    memset((void *)args, 0, sizeof *args);
    c.kernel = kernel;
    c.args = args;
    c.skew = skew;
    return c;
}

/* ---- running it ------------------------------------------------------------------------------ */

static inline void set_pointers(const struct cuda_case *c, bool device)
{
    for (int i = 0; i < c->pointer_count; i++) {
        const struct case_array *array = &c->arrays[c->pointers[i].array];
        char *address = (device ? array->device : array->host) + c->pointers[i].offset_bytes;
        memcpy(c->pointers[i].field, &address, sizeof address);
    }
}

static inline void upload(struct cuda_case *c)
{
    for (int i = 0; i < c->array_count; i++) {
        struct case_array *array = &c->arrays[i];
        const size_t bytes = array->bytes ? (size_t)array->bytes : 1;
        must(cudaMalloc((void **)&array->device, bytes), "cudaMalloc");
        must(cudaMemcpy(array->device, array->host, (size_t)array->bytes, cudaMemcpyHostToDevice),
            "copy to the device");
    }
}

/* Element i as bits, NaN as one. */
static inline uint32_t canonical(const struct case_array *array, const char *bytes, int64_t i)
{
    if (array->content == CONTENT_BYTES)
        return (unsigned char)bytes[i];
    const float value = array->content == CONTENT_F32 ? ((const float *)bytes)[i]
                                                      : bf16_to_f32(((const uint16_t *)bytes)[i]);
    return value != value ? 0x7fc00000u : f32_bits(value);
}

/* Elements of an array that differ; the first few are shown. */
static inline int64_t differences(const struct cuda_case *c, int number)
{
    const struct case_array *array = &c->arrays[number];
    char *found = (char *)malloc((size_t)array->bytes + 1);
    int64_t count = 0;
    if (!found)
        give_up("no memory for a case", cudaErrorMemoryAllocation);
    must(cudaMemcpy(found, array->device, (size_t)array->bytes, cudaMemcpyDeviceToHost),
        "copy from the device");
    for (int64_t i = 0; i < array->bytes / element_bytes_of(array->content); i++) {
        const uint32_t got = canonical(array, found, i), want = canonical(array, array->host, i);
        if (got != want && count++ < CASE_WORDS_SHOWN)
            tap_note("%s, array %d, element %lld: %08x, on the CPU %08x", c->kernel->name, number,
                (long long)i, got, want);
    }
    free(found);
    return count;
}

/* Runs the case on both and frees it; how many elements differ. */
static inline int64_t run_case(struct cuda_case *c)
{
    int64_t faults = 0;
    upload(c);
    set_pointers(c, true);
    must((cudaError_t)c->kernel->cuda(c->args, NULL), c->kernel->name);
    must(cudaDeviceSynchronize(), c->kernel->name);
    set_pointers(c, false);
    c->kernel->cpu(c->args, NULL);
    for (int i = 0; i < c->array_count; i++) {
        faults += differences(c, i);
        must(cudaFree(c->arrays[i].device), "cudaFree");
        free(c->arrays[i].host);
    }
    return faults;
}

/* The numbers below `count` in some order. */
static inline void permute(int32_t *list, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++)
        list[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = mixed(seed * 7919u + (uint32_t)i) % (uint32_t)(i + 1);
        const int32_t held = list[i];
        list[i] = list[j];
        list[j] = held;
    }
}

/* Whether there is a device; a test without one skips all it holds. */
static inline bool device_found(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices)
        return true;
    printf("1..0 # SKIP no CUDA device here\n");
    return false;
}
