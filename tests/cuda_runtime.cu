/* What our kernels and the CUDA device take for granted of CUDA: indices, barriers, warps, atomics,
 * rounding, streams, events, memory and errors. The emulator is held to it here, and so is a GPU
 * where the test is linked with CUDA. */
#include "kernels/launch.cuh"
#include <time.h>
extern "C" {
#include "tests/tap.h"
}

enum { THREADS = 96, WARP_LANES = 32, FULL = -1 };

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("Bail out! %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
#define MUST(call) must(call, #call)

/* The results of one block: `count` numbers for each thread, thread by thread. */
template <typename... Parameters, typename... Arguments>
static int *run_block(int count, void (*kernel)(int *, Parameters...), Arguments... arguments)
{
    int *device = NULL, *host = (int *)malloc(THREADS * (size_t)count * sizeof *host);
    MUST(cudaMalloc((void **)&device, THREADS * (size_t)count * sizeof *device));
    MUST(launch(kernel, 1, THREADS, 0, NULL, device, arguments...));
    MUST(cudaMemcpy(host, device, THREADS * (size_t)count * sizeof *host, cudaMemcpyDeviceToHost));
    MUST(cudaFree(device));
    return host;
}

/* ---- warps ----------------------------------------------------------------------------------- */

static __global__ void shuffle_all(int *out)
{
    const unsigned all = (unsigned)FULL;
    const int t = (int)threadIdx.x;
    out += 7 * t;
    out[0] = __shfl_sync(all, t, 5);
    out[1] = __shfl_sync(all, t, t + 3, 8);
    out[2] = __shfl_xor_sync(all, t, 17);
    out[3] = __shfl_up_sync(all, t, 3, 16);
    out[4] = __shfl_down_sync(all, t, 3, 16);
    out[5] = (int)__shfl_sync(all, (int64_t)t << 33, 9, 16) + (int)(__shfl_sync(all, 1.5f, 0) * 2);
    out[6] = (int)(__shfl_xor_sync(all, (int64_t)t << 33, 1) >> 33);
}

static bool shuffles_hold(void)
{
    int *out = run_block(7, shuffle_all), wrong = 0;
    for (int t = 0; t < THREADS; t++) {
        const int lane = t % WARP_LANES, warp = t - lane, *got = out + 7 * t;
        wrong += got[0] != warp + 5;
        wrong += got[1] != t / 8 * 8 + (t + 3) % 8;
        wrong += got[2] != (t ^ 17);
        wrong += got[3] != (lane % 16 < 3 ? t : t - 3);
        wrong += got[4] != (lane % 16 + 3 > 15 ? t : t + 3);
        wrong += got[5] != 3;
        wrong += got[6] != (t ^ 1);
    }
    free(out);
    return !wrong;
}

static __global__ void vote_all(int *out)
{
    const unsigned all = (unsigned)FULL, low = 0xffffu;
    const int t = (int)threadIdx.x, lane = t % WARP_LANES;
    out += 7 * t;
    out[0] = (int)__ballot_sync(all, lane % 3 == 0);
    out[1] = __any_sync(all, t == 40);
    out[2] = __all_sync(all, t >= 32);
    out[3] = (int)__reduce_add_sync(all, (unsigned)t);
    out[4] = (int)__reduce_max_sync(all, (unsigned)t);
    out[5] = (int)__reduce_min_sync(all, (unsigned)t);
    out[6] = (int)__ballot_sync(lane < 16 ? low : ~low, lane % 2);
}

static bool votes_hold(void)
{
    int *out = run_block(7, vote_all), wrong = 0;
    for (int t = 0; t < THREADS; t++) {
        const int lane = t % WARP_LANES, warp = t - lane, *got = out + 7 * t;
        wrong += (unsigned)got[0] != 0x49249249u;
        wrong += got[1] != (warp == 32);
        wrong += (got[2] != 0) != (warp >= 32);
        wrong += got[3] != 32 * warp + 496;
        wrong += got[4] != warp + 31;
        wrong += got[5] != warp;
        wrong += (unsigned)got[6] != (lane < 16 ? 0x0000aaaau : 0xaaaa0000u);
    }
    free(out);
    return !wrong;
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* Each round the value moves on by one thread; every third thread leaves before the last rounds. */
static __global__ void pass_around(int *out, int rounds)
{
    SHARED(int[2][THREADS], box);
    const int t = (int)threadIdx.x;
    int value = t;
    for (int round = 0; round < rounds; round++) {
        box[round % 2][t] = value;
        __syncthreads();
        value = box[round % 2][(t + 1) % THREADS];
    }
    out[3 * t] = value;
    out[3 * t + 1] = out[3 * t + 2] = -5;
    if (t % 3 == 0)
        return;
    __syncthreads();
    out[3 * t + 1] = __syncthreads_count(t % 2);
    out[3 * t + 2] = __syncthreads_or(t == 1) + 2 * __syncthreads_and(t >= 1);
}

static bool barriers_hold(void)
{
    const int rounds = 11;
    int *out = run_block(3, pass_around, rounds), wrong = 0;
    for (int t = 0; t < THREADS; t++) {
        wrong += out[3 * t] != (t + rounds) % THREADS;
        wrong += out[3 * t + 1] != (t % 3 ? 32 : -5);
        wrong += out[3 * t + 2] != (t % 3 ? 3 : -5);
    }
    free(out);
    return !wrong;
}

/* ---- indices, atomics, shared memory --------------------------------------------------------- */

static __global__ void mark_index(int *out)
{
    const dim3 all(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z);
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
    const int lane =
        (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
    atomicAdd(out + (z * all.y + y) * all.x + x, 100 + lane);
}

static bool indices_hold(void)
{
    enum { X = 6, Y = 10, Z = 6, CELLS = X * Y * Z };
    int *device = NULL, host[CELLS], wrong = 0;
    MUST(cudaMalloc((void **)&device, sizeof host));
    MUST(cudaMemset(device, 0, sizeof host));
    MUST(launch(mark_index, dim3(2, 2, 3), dim3(3, 5, 2), 0, NULL, device));
    MUST(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    MUST(cudaFree(device));
    for (int i = 0; i < CELLS; i++) {
        const int x = i % X, y = i / X % Y, z = i / X / Y;
        wrong += host[i] != 100 + (x % 3 + 3 * (y % 5 + 5 * (z % 2))) % 32;
    }
    return !wrong;
}

static __global__ void count_with_atomics(unsigned *out, unsigned long long *wide)
{
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], t);
    atomicMax(&out[1], t);
    atomicMin(&out[2], t + 3);
    atomicOr(&out[3], 1u << t % 32);
    atomicXor(&out[4], t);
    atomicAdd(wide, 1ull << 33);
    for (unsigned seen = out[5];;) {
        const unsigned before = atomicCAS(&out[5], seen, seen + 2);
        if (before == seen)
            break;
        seen = before;
    }
    if (atomicExch(&out[6], t + 1) == 0)
        atomicAdd(&out[7], 1);
}

static bool atomics_hold(void)
{
    unsigned host[8] = {0, 0, 1000, 0, 0, 0, 0, 0}, *device = NULL;
    unsigned long long wide = 0, *wide_device = NULL;
    MUST(cudaMalloc((void **)&device, sizeof host));
    MUST(cudaMalloc((void **)&wide_device, sizeof wide));
    MUST(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    MUST(cudaMemset(wide_device, 0, sizeof wide));
    MUST(launch(count_with_atomics, 3, 64, 0, NULL, device, wide_device));
    MUST(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(&wide, wide_device, sizeof wide, cudaMemcpyDeviceToHost));
    MUST(cudaFree(device));
    MUST(cudaFree(wide_device));
    return host[0] == 191 * 96 && host[1] == 191 && host[2] == 3 && host[3] == 0xffffffffu &&
           host[4] == 0 && host[5] == 384 && host[6] > 0 && host[7] == 1 && wide == 192ull << 33;
}

static __global__ void use_much_shared_memory(int *out, int words)
{
    DYNAMIC_SHARED(int, box);
    for (int i = (int)threadIdx.x; i < words; i += (int)blockDim.x)
        box[i] = i;
    __syncthreads();
    out[threadIdx.x] = box[words - 1 - (int)threadIdx.x];
}

static bool shared_memory_holds(void)
{
    const int words = 24 << 10; /* 96 KiB */
    int *device = NULL, host[THREADS], wrong = 0;
    MUST(cudaMalloc((void **)&device, sizeof host));
    MUST(launch(use_much_shared_memory, 1, THREADS, (size_t)words * 4, NULL, device, words));
    MUST(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    bool refused = launch(use_much_shared_memory, 1, THREADS, 1 << 20, NULL, device, words) ==
                   cudaErrorInvalidValue;
    cudaGetLastError();
    MUST(cudaFree(device));
    for (int t = 0; t < THREADS; t++)
        wrong += host[t] != words - 1 - t;
    return !wrong && refused;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static __global__ void round_all(int *out, float a, float b, float c)
{
    out += 8 * threadIdx.x;
    out[0] = __float_as_int(__fmaf_rn(a, b, c));
    out[1] = __float_as_int(a * b + c); /* not fused: -fmad=false, -ffp-contract=off */
    out[2] = __float_as_int(__fdiv_rn(a, b));
    out[3] = __float_as_int(__fsqrt_rn(a));
    out[4] = __float_as_int(a * 1e-39f); /* a denormal stays: -ftz=false */
    out[5] = __float_as_int(__double2float_rn(__fma_rn((double)a, (double)b, 1e-9)));
    out[6] = __popc((unsigned)__float_as_int(a)) + 100 * __clz(__float_as_int(b));
    out[7] = (int)__brev(6u);
}

static bool rounding_holds(void)
{
    const volatile float va = 1.0f / 3, vb = 3.0000002f, vc = -1.0f;
    const float a = va, b = vb, c = vc, product = a * b;
    int *out = run_block(8, round_all, a, b, c);
    float fused = fmaf(a, b, c), apart = product + c, quotient = a / b, root = sqrtf(a);
    float small = a * 1e-39f, wide = (float)fma((double)a, (double)b, 1e-9);
    bool holds = !memcmp(out, &fused, 4) && !memcmp(out + 1, &apart, 4) && fused != apart &&
                 !memcmp(out + 2, &quotient, 4) && !memcmp(out + 3, &root, 4) &&
                 !memcmp(out + 4, &small, 4) && small > 0 && !memcmp(out + 5, &wide, 4) &&
                 out[6] == __builtin_popcount(0x3eaaaaabu) + 100 && out[7] == 0x60000000;
    free(out);
    return holds;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static __global__ void add_number(int *out, int number)
{
    atomicAdd(out, number);
}

static __global__ void double_number(int *out)
{
    *out *= 2;
}

/* 0, then +3 on one stream, *2 on the other, +1 on the first, ordered by events; then read back by
 * a host function. */
struct order_case {
    int *device, *host, seen;
};

static void look_at_host(void *data)
{
    struct order_case *it = (struct order_case *)data;
    it->seen = *it->host;
}

static bool events_order(void)
{
    struct order_case it = {NULL, NULL, 0};
    cudaStream_t first, second;
    cudaEvent_t event;
    MUST(cudaMalloc((void **)&it.device, sizeof(int)));
    MUST(cudaHostAlloc((void **)&it.host, sizeof(int), cudaHostAllocDefault));
    MUST(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(cudaMemsetAsync(it.device, 0, sizeof(int), first));
    MUST(launch(add_number, 1, 1, 0, first, it.device, 3));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    MUST(launch(double_number, 1, 1, 0, second, it.device));
    MUST(cudaEventRecord(event, second)); /* the first wait keeps the first point */
    MUST(cudaStreamWaitEvent(first, event, 0));
    MUST(launch(add_number, 1, 1, 0, first, it.device, 1));
    MUST(cudaMemcpyAsync(it.host, it.device, sizeof(int), cudaMemcpyDeviceToHost, first));
    MUST(cudaLaunchHostFunc(first, look_at_host, &it));
    MUST(cudaStreamSynchronize(first));
    bool holds = *it.host == 7 && it.seen == 7 && cudaStreamQuery(second) == cudaSuccess &&
                 cudaEventQuery(event) == cudaSuccess;
    MUST(cudaEventDestroy(event));
    MUST(cudaStreamDestroy(first));
    MUST(cudaStreamDestroy(second));
    MUST(cudaFreeHost(it.host));
    MUST(cudaFree(it.device));
    return holds;
}

/* A host that only asks gets what it waits for. */
static bool queries_end(void)
{
    int *device = NULL, turns = 0;
    cudaStream_t stream;
    MUST(cudaMalloc((void **)&device, sizeof(int)));
    MUST(cudaStreamCreate(&stream));
    for (int i = 0; i < 20; i++)
        MUST(launch(add_number, 1, 1, 0, stream, device, 1));
    const struct timespec pause = {0, 100000};
    while (cudaStreamQuery(stream) == cudaErrorNotReady && turns++ < 50000)
        nanosleep(&pause, NULL);
    bool holds = cudaStreamQuery(stream) == cudaSuccess;
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(device));
    return holds;
}

/* A stream made without flags and the default stream wait for each other; times of events. */
static bool default_stream_orders(void)
{
    int *device = NULL, host = 0;
    float milliseconds = -1;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    MUST(cudaMalloc((void **)&device, sizeof(int)));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaEventRecord(begin, stream));
    MUST(cudaMemset(device, 0, sizeof(int)));
    MUST(launch(add_number, 1, 1, 0, stream, device, 5));
    MUST(launch(double_number, 1, 1, 0, NULL, device));
    MUST(launch(add_number, 1, 1, 0, stream, device, 1));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(device));
    return host == 11 && milliseconds >= 0;
}

/* ---- memory and errors ----------------------------------------------------------------------- */

static bool memory_is_told(void)
{
    size_t free_before = 0, free_between = 0, total = 0;
    void *block = NULL, *pinned = NULL, *none = &block;
    struct cudaPointerAttributes of_block, of_pinned;
    const size_t bytes = 64 << 20;
    MUST(cudaMemGetInfo(&free_before, &total));
    MUST(cudaMalloc(&block, bytes));
    MUST(cudaMemGetInfo(&free_between, &total));
    MUST(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
    MUST(cudaPointerGetAttributes(&of_block, (char *)block + 7));
    MUST(cudaPointerGetAttributes(&of_pinned, pinned));
    bool holds = free_between + bytes <= free_before && free_before <= total &&
                 of_block.type == cudaMemoryTypeDevice && of_pinned.type == cudaMemoryTypeHost &&
                 (uintptr_t)block % 256 == 0;
    MUST(cudaFree(block));
    MUST(cudaFreeHost(pinned));
    holds = holds && cudaMalloc(&none, total + 1) == cudaErrorMemoryAllocation;
    holds = holds && cudaGetLastError() == cudaErrorMemoryAllocation;
    return holds && cudaGetLastError() == cudaSuccess;
}

/* Blocks in the order of a stream: freed before the next is asked for, they need room for one. */
static bool pools_hold(void)
{
    cudaStream_t stream;
    cudaMemPool_t pool;
    cudaMemPoolProps properties;
    uint64_t keep = UINT64_MAX, used = 1, reserved = 0;
    void *block = NULL;
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    MUST(cudaMemPoolCreate(&pool, &properties));
    MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) {
        MUST(cudaMallocFromPoolAsync(&block, 1 << 20, pool, stream));
        MUST(cudaMemsetAsync(block, i, 1 << 20, stream));
        MUST(cudaFreeAsync(block, stream));
    }
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    bool holds = used == 0 && reserved >= 1 << 20;
    MUST(cudaMemPoolTrimTo(pool, 0));
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaMemPoolDestroy(pool));
    return holds && reserved == 0;
}

static bool errors_are_told(void)
{
    int devices = 0, *device = NULL;
    MUST(cudaGetDeviceCount(&devices));
    MUST(cudaMalloc((void **)&device, sizeof(int)));
    bool holds =
        launch(double_number, 1, 1025, 0, NULL, device) == cudaErrorInvalidConfiguration &&
        launch(double_number, dim3(1, 70000), 1, 0, NULL, device) ==
            cudaErrorInvalidConfiguration &&
        launch(double_number, 0, 1, 0, NULL, device) == cudaSuccess && /* nothing to do */
        cudaSetDevice(devices) == cudaErrorInvalidDevice &&
        cudaMemcpy(device, device, 4, (enum cudaMemcpyKind)77) == cudaErrorInvalidMemcpyDirection &&
        !strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") &&
        !strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    cudaGetLastError();
    MUST(cudaFree(device));
    return holds;
}

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("1..0 # SKIP no CUDA device here\n");
        return 0;
    }
    tap_ok(shuffles_hold(), "shuffles: any lane, by exclusive or, up and down, in segments");
    tap_ok(votes_hold(), "votes and reductions of a warp, and of its halves apart");
    tap_ok(barriers_hold(), "barriers, that count, and do not wait for who has left");
    tap_ok(indices_hold(), "indices of a grid and its blocks in three dimensions");
    tap_ok(atomics_hold(), "integer atomics");
    tap_ok(shared_memory_holds(), "96 KiB of shared memory; 1 MiB is refused");
    tap_ok(rounding_holds(), "fused and apart, division, root, denormals, conversion, bits");
    tap_ok(events_order(), "streams in the order of events; a host function behind them");
    tap_ok(queries_end(), "a host that asks again and again is done");
    tap_ok(default_stream_orders(), "the default stream and a blocking one; times of events");
    tap_ok(memory_is_told(), "free memory, kinds of memory, and none left");
    tap_ok(pools_hold(), "a pool keeps what is freed until it is trimmed");
    tap_ok(errors_are_told(), "launches and calls that are refused");
    return tap_done();
}
