/* What a kernel may call: barriers, warp operations, atomics, and arithmetic by the names that say
 * how it rounds. A function that is not here does not compile; float atomics are left out because
 * their sums depend on the order of the threads. */
#pragma once
#include <math.h>
#include <string.h>
#include <type_traits>
#include "tests/cuda_emu/cuda_types.h"

static constexpr int warpSize = 32;

/* Set at every switch to a thread; kernels only read them. One kernel runs at a time. */
extern struct uint3 threadIdx, blockIdx;
extern struct dim3 blockDim, gridDim;

/* ---- shared memory --------------------------------------------------------------------------- */

template <typename T> struct emulated_type {
    using type = T;
};

/* The block's storage for the declaration that `site` stands for; NaN when a block begins. */
void *emulated_shared(const void *site, size_t bytes);
/* The launch's shared_bytes. */
void *emulated_dynamic_shared(void);

#define EMULATED_SHARED(T, name)                                                                   \
    static const char name##_site = 0;                                                             \
    typename emulated_type<T>::type &name = *static_cast<typename emulated_type<T>::type *>(       \
        emulated_shared(&name##_site, sizeof(typename emulated_type<T>::type)))
#define EMULATED_DYNAMIC_SHARED(T, name) T *name = static_cast<T *>(emulated_dynamic_shared())

/* ---- barriers ----------------------------------------------------------------------------------
 * `line` is where the call stands: threads that meet must come from the same one. */

void __syncthreads(int line = __builtin_LINE());
int __syncthreads_count(int condition, int line = __builtin_LINE());

static inline int __syncthreads_or(int condition, int line = __builtin_LINE())
{
    return __syncthreads_count(condition, line) != 0;
}

static inline int __syncthreads_and(int condition, int line = __builtin_LINE())
{
    return __syncthreads_count(!condition, line) == 0;
}

/* Blocks run one after the other, and a thread runs until it waits: memory is always in order. */
static inline void __threadfence_block(void)
{
}

static inline void __threadfence(void)
{
}

static inline void __threadfence_system(void)
{
}

/* ---- warps ----------------------------------------------------------------------------------- */

/* The lanes of `mask` meet, each with a value of at most 8 bytes; gives all lanes' values, which
 * stay until the lane's next meeting. */
const uint64_t *emulated_warp_meet(unsigned mask, uint64_t value, const char *operation, int line);
/* The value of `lane`, which must be in the mask. */
uint64_t emulated_warp_take(
    const uint64_t *values, unsigned mask, int lane, const char *operation, int line);
int emulated_lane(void);

static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE())
{
    emulated_warp_meet(mask, 0, "__syncwarp", line);
}

template <typename T>
static inline T emulated_shuffle(
    unsigned mask, T value, int source, const char *operation, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *values = emulated_warp_meet(mask, bits, operation, line);
    bits = emulated_warp_take(values, mask, source, operation, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Shuffles within segments of `width` lanes, a power of two; beyond its segment's end a lane keeps
 * its own value. */
template <typename T>
static inline T __shfl_sync(
    unsigned mask, T value, int source, int width = warpSize, int line = __builtin_LINE())
{
    int segment = emulated_lane() & ~(width - 1);
    return emulated_shuffle(mask, value, segment + (source & (width - 1)), "__shfl_sync", line);
}

template <typename T>
static inline T __shfl_xor_sync(
    unsigned mask, T value, int with, int width = warpSize, int line = __builtin_LINE())
{
    int lane = emulated_lane(), source = lane ^ with;
    if (source >= (lane & ~(width - 1)) + width)
        source = lane;
    return emulated_shuffle(mask, value, source, "__shfl_xor_sync", line);
}

template <typename T>
static inline T __shfl_down_sync(
    unsigned mask, T value, unsigned by, int width = warpSize, int line = __builtin_LINE())
{
    int lane = emulated_lane(), source = lane + (int)by;
    if (source >= (lane & ~(width - 1)) + width)
        source = lane;
    return emulated_shuffle(mask, value, source, "__shfl_down_sync", line);
}

template <typename T>
static inline T __shfl_up_sync(
    unsigned mask, T value, unsigned by, int width = warpSize, int line = __builtin_LINE())
{
    int lane = emulated_lane(), source = lane - (int)by;
    if (source < (lane & ~(width - 1)))
        source = lane;
    return emulated_shuffle(mask, value, source, "__shfl_up_sync", line);
}

static inline unsigned emulated_ballot(
    unsigned mask, int condition, const char *operation, int line)
{
    const uint64_t *values = emulated_warp_meet(mask, condition != 0, operation, line);
    unsigned ballot = 0;
    for (int lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1)
            ballot |= (unsigned)values[lane] << lane;
    return ballot;
}

static inline unsigned __ballot_sync(unsigned mask, int condition, int line = __builtin_LINE())
{
    return emulated_ballot(mask, condition, "__ballot_sync", line);
}

static inline int __any_sync(unsigned mask, int condition, int line = __builtin_LINE())
{
    return emulated_ballot(mask, condition, "__any_sync", line) != 0;
}

static inline int __all_sync(unsigned mask, int condition, int line = __builtin_LINE())
{
    return emulated_ballot(mask, condition, "__all_sync", line) == mask;
}

static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, int line = __builtin_LINE())
{
    const uint64_t *values = emulated_warp_meet(mask, value, "__reduce_add_sync", line);
    unsigned sum = 0;
    for (int lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1)
            sum += (unsigned)values[lane];
    return sum;
}

static inline unsigned __reduce_max_sync(unsigned mask, unsigned value, int line = __builtin_LINE())
{
    const uint64_t *values = emulated_warp_meet(mask, value, "__reduce_max_sync", line);
    unsigned largest = 0;
    for (int lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1 && (unsigned)values[lane] > largest)
            largest = (unsigned)values[lane];
    return largest;
}

static inline unsigned __reduce_min_sync(unsigned mask, unsigned value, int line = __builtin_LINE())
{
    return ~__reduce_max_sync(mask, ~value, line);
}

/* ---- atomics --------------------------------------------------------------------------------- */

template <typename T> struct emulated_is_atomic;
template <> struct emulated_is_atomic<int> {
};
template <> struct emulated_is_atomic<unsigned> {
};
template <> struct emulated_is_atomic<unsigned long long> {
};

#define EMULATED_ATOMIC(name, now)                                                                 \
    template <typename T> static inline T name(T *at, typename emulated_type<T>::type value)       \
    {                                                                                              \
        (void)sizeof(emulated_is_atomic<T>);                                                       \
        T before = *at;                                                                            \
        *at = now;                                                                                 \
        return before;                                                                             \
    }
EMULATED_ATOMIC(atomicAdd, (T)((unsigned long long)before + (unsigned long long)value))
EMULATED_ATOMIC(atomicSub, (T)((unsigned long long)before - (unsigned long long)value))
EMULATED_ATOMIC(atomicExch, value)
EMULATED_ATOMIC(atomicMin, value < before ? value : before)
EMULATED_ATOMIC(atomicMax, value > before ? value : before)
EMULATED_ATOMIC(atomicAnd, before &value)
EMULATED_ATOMIC(atomicOr, before | value)
EMULATED_ATOMIC(atomicXor, before ^ value)
#undef EMULATED_ATOMIC

template <typename T>
static inline T atomicCAS(
    T *at, typename emulated_type<T>::type expected, typename emulated_type<T>::type value)
{
    (void)sizeof(emulated_is_atomic<T>);
    T before = *at;
    *at = before == expected ? value : before;
    return before;
}

/* ---- loads and stores that name a cache ------------------------------------------------------ */

#define EMULATED_LOAD(name)                                                                        \
    template <typename T> static inline T name(const T *from)                                      \
    {                                                                                              \
        return *from;                                                                              \
    }
EMULATED_LOAD(__ldg)
EMULATED_LOAD(__ldca)
EMULATED_LOAD(__ldcg)
EMULATED_LOAD(__ldcs)
EMULATED_LOAD(__ldlu)
EMULATED_LOAD(__ldcv)
#undef EMULATED_LOAD

#define EMULATED_STORE(name)                                                                       \
    template <typename T> static inline void name(T *to, typename emulated_type<T>::type value)    \
    {                                                                                              \
        *to = value;                                                                               \
    }
EMULATED_STORE(__stwb)
EMULATED_STORE(__stcg)
EMULATED_STORE(__stcs)
EMULATED_STORE(__stwt)
#undef EMULATED_STORE

/* ---- arithmetic ------------------------------------------------------------------------------ */

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}

static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __dsub_rn(double a, double b)
{
    return a - b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

static inline double __dsqrt_rn(double a)
{
    return sqrt(a);
}

static inline float __double2float_rn(double a)
{
    return (float)a;
}

static inline float __int2float_rn(int a)
{
    return (float)a;
}

static inline float __uint2float_rn(unsigned a)
{
    return (float)a;
}

static inline float __ll2float_rn(long long a)
{
    return (float)a;
}

static inline double __ll2double_rn(long long a)
{
    return (double)a;
}

/* ---- bits ------------------------------------------------------------------------------------ */

template <typename To, typename From> static inline To emulated_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "the bits of a number of the same size");
    To bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline int __float_as_int(float a)
{
    return emulated_bits<int>(a);
}

static inline unsigned __float_as_uint(float a)
{
    return emulated_bits<unsigned>(a);
}

static inline float __int_as_float(int a)
{
    return emulated_bits<float>(a);
}

static inline float __uint_as_float(unsigned a)
{
    return emulated_bits<float>(a);
}

static inline long long __double_as_longlong(double a)
{
    return emulated_bits<long long>(a);
}

static inline double __longlong_as_double(long long a)
{
    return emulated_bits<double>(a);
}

static inline int __popc(unsigned a)
{
    return __builtin_popcount(a);
}

static inline int __clz(int a)
{
    return a ? __builtin_clz((unsigned)a) : 32;
}

static inline int __ffs(int a)
{
    return __builtin_ffs(a);
}

static inline unsigned __brev(unsigned a)
{
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++)
        reversed |= (a >> bit & 1) << (31 - bit);
    return reversed;
}

/* Of floats, the one that is a number: as the C library's and the device's. */
template <typename A, typename B> static inline auto min(A a, B b) -> decltype(a + b)
{
    if constexpr (std::is_floating_point<decltype(a + b)>::value)
        return (decltype(a + b))fmin(a, b);
    else
        return b < a ? b : a;
}

template <typename A, typename B> static inline auto max(A a, B b) -> decltype(a + b)
{
    if constexpr (std::is_floating_point<decltype(a + b)>::value)
        return (decltype(a + b))fmax(a, b);
    else
        return a < b ? b : a;
}
