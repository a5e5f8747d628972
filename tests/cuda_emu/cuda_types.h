/* The vector types, dim3 and the spelling of CUDA C++ for the emulator. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__
#define __managed__ static_assert(false, "the emulator has no managed memory")
#define __shared__ static_assert(false, "use SHARED or DYNAMIC_SHARED of kernels/launch.cuh")

#define CUDA_VECTOR_TYPES(scalar, name, alignment2, alignment4)                                    \
    struct name##1                                                                                 \
    {                                                                                              \
        scalar x;                                                                                  \
    };                                                                                             \
    struct __align__(alignment2) name##2                                                           \
    {                                                                                              \
        scalar x, y;                                                                               \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        scalar x, y, z;                                                                            \
    };                                                                                             \
    struct __align__(alignment4) name##4                                                           \
    {                                                                                              \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    static inline struct name##2 make_##name##2(scalar x, scalar y)                                \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline struct name##3 make_##name##3(scalar x, scalar y, scalar z)                      \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }                                                                                              \
    static inline struct name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w)            \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }

CUDA_VECTOR_TYPES(signed char, char, 2, 4)
CUDA_VECTOR_TYPES(unsigned char, uchar, 2, 4)
CUDA_VECTOR_TYPES(short, short, 4, 8)
CUDA_VECTOR_TYPES(unsigned short, ushort, 4, 8)
CUDA_VECTOR_TYPES(int, int, 8, 16)
CUDA_VECTOR_TYPES(unsigned, uint, 8, 16)
CUDA_VECTOR_TYPES(long long, longlong, 16, 16)
CUDA_VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)
CUDA_VECTOR_TYPES(float, float, 8, 16)
CUDA_VECTOR_TYPES(double, double, 16, 16)
#undef CUDA_VECTOR_TYPES

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
