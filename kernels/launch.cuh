/* How a kernel of kernels/X.cu starts and where its shared memory comes from: what nvcc and the
 * emulator (tests/cuda_emu), which compiles the same files with a C++ compiler, have in common.
 *
 * A .cu file is C-like C++17. It includes this header first and the C headers after it:
 *
 *     #include "kernels/launch.cuh"
 *     extern "C" {
 *     #include "kernels/strip.h"
 *     }
 *
 * Kernels start through launch() alone, never through triple chevrons, and name their shared memory
 * with SHARED and DYNAMIC_SHARED alone, never with __shared__, so that the emulator can give every
 * block fresh storage of exactly that size, filled with NaN.
 *
 * One libflatpeak.a serves programs with and without CUDA. For that kernels/X.c declares what X.cu
 * defines as weak and names it in its struct kernel; it is NULL unless CUDA objects are linked:
 *
 *     int strip_fold_cuda(const void *args, void *cuda_stream) __attribute__((weak));
 *
 * There it is extern "C" and gives launch()'s result: 0, or the cudaError_t. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <cuda_runtime.h>

/* The same type; in a parameter it leaves deduction to the others, in a declaration it lets an
 * array's type stand before the name. */
template <typename T> struct same_type {
    using type = T;
};

#ifdef CUDA_EMULATOR
#define SHARED(T, name) EMULATED_SHARED(T, name)
#define DYNAMIC_SHARED(T, name) EMULATED_DYNAMIC_SHARED(T, name)
#else
/* Declares `name` of the type T, which may be an array's, in the block's shared memory:
 *     SHARED(float[32][33], tile); */
#define SHARED(T, name) __shared__ typename same_type<T>::type name
/* Declares T *name: the launch's shared_bytes, 16-byte aligned. Once in a kernel. */
#define DYNAMIC_SHARED(T, name)                                                                    \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                          \
    T *name = reinterpret_cast<T *>(dynamic_shared_bytes)
#endif

/* Shared memory that a block has without asking. */
#define SHARED_BYTES_UNASKED (48 << 10)

/* Enqueues kernel(arguments...) on the stream; each argument is converted to its parameter's type.
 * A grid without blocks is nothing to do. cudaSuccess, or why it could not be enqueued. */
template <typename... Parameters>
static inline cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
    size_t shared_bytes, cudaStream_t stream, typename same_type<Parameters>::type... arguments)
{
    if (!grid.x || !grid.y || !grid.z)
        return cudaSuccess;
    if (shared_bytes > SHARED_BYTES_UNASKED) {
        cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return error;
    }
    void *pointers[] = {static_cast<void *>(&arguments)..., nullptr};
    return cudaLaunchKernel(kernel, grid, block, pointers, shared_bytes, stream);
}
