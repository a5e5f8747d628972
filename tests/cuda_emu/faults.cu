/* faults - small programs for the emulator, each right and with one planted fault
 *
 * Usage: faults                lists the faults
 *        faults NAME           runs the right program
 *        faults NAME planted   runs it with the fault
 *
 * Exit status: 0 the result is right, 1 it is wrong (a comparison with the CPU would tell), 2
 * usage; or the emulator or a sanitizer ends the program. tests/cuda_faults.t runs all of them. */
#include "kernels/launch.cuh"

enum { THREADS = 64, BLOCKS = 5, COUNT = THREADS * BLOCKS - 7 /* a ragged edge */ };

/* ---- memory of a case ------------------------------------------------------------------------ */

/* Calls that must go well here. */
static void must(cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    printf("Bail out! %s\n", cudaGetErrorString(error));
    exit(3);
}

static int *device_block(int count)
{
    int *block = NULL;
    must(cudaMalloc((void **)&block, (size_t)count * sizeof *block));
    return block;
}

static int *pinned_block(int count)
{
    int *block = NULL;
    must(cudaHostAlloc((void **)&block, (size_t)count * sizeof *block, cudaHostAllocDefault));
    return block;
}

static int input_at(int i)
{
    return i * 7 + 3;
}

/* A device block of `count` numbers. */
static int *input_block(int count)
{
    int host[2 * COUNT], *block = device_block(count);
    for (int i = 0; i < count; i++)
        host[i] = input_at(i);
    must(cudaMemcpy(block, host, (size_t)count * sizeof *block, cudaMemcpyHostToDevice));
    return block;
}

/* How many of the results differ from what they should be; frees both blocks. */
static int count_wrong(int *input, int *output, int count, int (*expected)(int i))
{
    int host[2 * COUNT], wrong = 0;
    must(cudaMemcpy(host, output, (size_t)count * sizeof *host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++)
        wrong += host[i] != expected(i);
    must(cudaFree(input));
    must(cudaFree(output));
    return wrong;
}

static int index_of_thread_on_host(int i)
{
    return i % THREADS;
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Reverses the numbers of a block. */
template <bool PLANTED> static __global__ void reverse_block(const int *in, int *out, int count)
{
    SHARED(int[THREADS], tile);
    const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
    tile[t] = i < count ? in[i] : 0;
    if (!PLANTED)
        __syncthreads();
    if (i < count)
        out[i] = tile[THREADS - 1 - t];
}

static int reversed(int i)
{
    int from = i / THREADS * THREADS + THREADS - 1 - i % THREADS;
    return from < COUNT ? input_at(from) : 0;
}

static int missing_barrier(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    must(launch(planted ? reverse_block<true> : reverse_block<false>, BLOCKS, THREADS, 0, NULL, in,
        out, COUNT));
    return count_wrong(in, out, COUNT, reversed);
}

/* Adds the neighbour's number of every round; the tile is used again and again. */
template <bool PLANTED> static __global__ void add_rounds(int *out, int rounds)
{
    DYNAMIC_SHARED(int, tile);
    const int t = (int)threadIdx.x;
    int sum = 0;
    for (int round = 0; round < rounds; round++) {
        tile[t] = t * round;
        __syncthreads();
        sum += tile[(t + 1) % THREADS];
        if (!PLANTED)
            __syncthreads();
    }
    out[(int)blockIdx.x * THREADS + t] = sum;
}

static int neighbours_rounds(int i)
{
    return (i + 1) % THREADS * (0 + 1 + 2 + 3);
}

static int early_reuse_of_a_tile(bool planted)
{
    int *in = input_block(1), *out = device_block(2 * THREADS);
    must(launch(planted ? add_rounds<true> : add_rounds<false>, 2, THREADS, THREADS * sizeof(int),
        NULL, out, 4));
    return count_wrong(in, out, 2 * THREADS, neighbours_rounds);
}

/* The lanes of a warp change places by shared memory. */
template <bool PLANTED> static __global__ void swap_in_warp(int *out)
{
    SHARED(int[THREADS], tile);
    const int t = (int)threadIdx.x;
    tile[t] = t;
    if (!PLANTED)
        __syncwarp();
    out[(int)blockIdx.x * THREADS + t] = tile[t ^ 1];
}

static int swapped(int i)
{
    return index_of_thread_on_host(i) ^ 1;
}

static int missing_warp_barrier(bool planted)
{
    int *in = input_block(1), *out = device_block(2 * THREADS);
    must(launch(planted ? swap_in_warp<true> : swap_in_warp<false>, 2, THREADS, 0, NULL, out));
    return count_wrong(in, out, 2 * THREADS, swapped);
}

/* Sums a block's numbers; thread 0 must have cleared the sum. */
template <bool PLANTED> static __global__ void sum_block(int *out)
{
    SHARED(int, sum);
    if (!PLANTED && !threadIdx.x)
        sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1);
    __syncthreads();
    if (!threadIdx.x)
        out[blockIdx.x] = sum;
}

static int all_threads(int)
{
    return THREADS;
}

static int uninitialised_shared_memory(bool planted)
{
    int *in = input_block(1), *out = device_block(BLOCKS);
    must(launch(planted ? sum_block<true> : sum_block<false>, BLOCKS, THREADS, 0, NULL, out));
    return count_wrong(in, out, BLOCKS, all_threads);
}

/* Writes `past` elements too far into the tile. */
static __global__ void fill_tile(int *out, int past)
{
    DYNAMIC_SHARED(int, tile);
    const int t = (int)threadIdx.x;
    tile[t + past] = t;
    __syncthreads();
    out[(int)blockIdx.x * THREADS + t] = t;
}

static int shared_memory_overrun(bool planted)
{
    int *in = input_block(1), *out = device_block(2 * THREADS);
    must(launch(fill_tile, 2, THREADS, THREADS * sizeof(int), NULL, out, planted ? 1 : 0));
    return count_wrong(in, out, 2 * THREADS, index_of_thread_on_host);
}

/* ---- global memory --------------------------------------------------------------------------- */

/* out[i] = in[i + shift]; the last ones are 0. */
template <bool PLANTED> static __global__ void shift_left(const int *in, int *out, int count)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        out[i] = (PLANTED ? i + 1 <= count : i + 1 < count) ? in[i + 1] : 0;
}

static int shifted(int i)
{
    return i + 1 < COUNT ? input_at(i + 1) : 0;
}

static int read_one_too_far(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    must(launch(
        planted ? shift_left<true> : shift_left<false>, BLOCKS, THREADS, 0, NULL, in, out, COUNT));
    return count_wrong(in, out, COUNT, shifted);
}

template <bool PLANTED> static __global__ void copy_all(const int *in, int *out, int count)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (PLANTED ? i <= count : i < count)
        out[i] = in[i < count ? i : 0];
}

static int write_one_too_far(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    must(launch(
        planted ? copy_all<true> : copy_all<false>, BLOCKS, THREADS, 0, NULL, in, out, COUNT));
    return count_wrong(in, out, COUNT, input_at);
}

static __global__ void add_to(const int *in, int *out, int count)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        out[i] += in[i];
}

static int uninitialised_sum(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    if (!planted)
        must(cudaMemset(out, 0, COUNT * sizeof *out));
    must(launch(add_to, BLOCKS, THREADS, 0, NULL, in, out, COUNT));
    return count_wrong(in, out, COUNT, input_at);
}

/* Block b's result is one more than that of block b - 1, which need not have run. */
template <bool PLANTED> static __global__ void chain_blocks(int *out)
{
    const int b = (int)blockIdx.x;
    if (!threadIdx.x)
        out[b] = PLANTED && b ? out[b - 1] + 1 : b;
}

static int index_itself(int i)
{
    return i;
}

static int order_of_blocks(bool planted)
{
    int *in = input_block(1), *out = device_block(BLOCKS);
    must(launch(planted ? chain_blocks<true> : chain_blocks<false>, BLOCKS, THREADS, 0, NULL, out));
    return count_wrong(in, out, BLOCKS, index_itself);
}

static int use_after_free(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    if (planted)
        must(cudaFree(in));
    must(launch(copy_all<false>, BLOCKS, THREADS, 0, NULL, in, out, COUNT));
    return count_wrong(planted ? NULL : in, out, COUNT, input_at);
}

/* ---- warps and barriers ---------------------------------------------------------------------- */

/* A warp's first `lanes` lanes sum their numbers; the planted distances reach beyond them. */
template <bool PLANTED> static __global__ void sum_lanes(int *out, int lanes)
{
    const int lane = (int)threadIdx.x % warpSize;
    if (lane >= lanes)
        return;
    int sum = lane;
    for (int distance = (PLANTED ? warpSize : lanes) / 2; distance; distance /= 2)
        sum += __shfl_xor_sync((1u << lanes) - 1, sum, distance);
    out[((int)threadIdx.x / warpSize) * lanes + lane] = sum;
}

static int sum_of_8(int)
{
    return 28;
}

static int lane_outside_the_mask(bool planted)
{
    int *in = input_block(1), *out = device_block(16);
    must(launch(planted ? sum_lanes<true> : sum_lanes<false>, 1, THREADS, 0, NULL, out, 8));
    return count_wrong(in, out, 16, sum_of_8);
}

/* Every lane takes its left neighbour's number; the first takes the last's. */
template <bool PLANTED> static __global__ void rotate_warp(int *out)
{
    const int lane = (int)threadIdx.x % warpSize;
    const int from = PLANTED ? lane + 1 : lane - 1;
    out[blockIdx.x * THREADS + threadIdx.x] = __shfl_sync(0xffffffffu, lane, from & 31);
}

static int left_neighbour(int i)
{
    return (i + warpSize - 1) % warpSize;
}

static int wrong_lane(bool planted)
{
    int *in = input_block(1), *out = device_block(THREADS);
    must(launch(planted ? rotate_warp<true> : rotate_warp<false>, 1, THREADS, 0, NULL, out));
    return count_wrong(in, out, THREADS, left_neighbour);
}

/* Half of the threads meet at a barrier of their own. */
template <bool PLANTED> static __global__ void part_ways(int *out)
{
    if (PLANTED && threadIdx.x < THREADS / 2)
        __syncthreads();
    __syncthreads();
    out[threadIdx.x] = (int)threadIdx.x;
}

static int barrier_of_some_threads(bool planted)
{
    int *in = input_block(1), *out = device_block(THREADS);
    must(launch(planted ? part_ways<true> : part_ways<false>, 1, THREADS, 0, NULL, out));
    return count_wrong(in, out, THREADS, index_itself);
}

/* All lanes are named in the mask; some have left. */
template <bool PLANTED> static __global__ void vote_late(int *out)
{
    if (PLANTED && threadIdx.x % warpSize > 20)
        return;
    out[threadIdx.x] = __any_sync(0xffffffffu, threadIdx.x == 3);
}

static int first_warp_only(int i)
{
    return i < warpSize;
}

static int mask_names_lanes_that_left(bool planted)
{
    int *in = input_block(1), *out = device_block(THREADS);
    must(launch(planted ? vote_late<true> : vote_late<false>, 1, THREADS, 0, NULL, out));
    return count_wrong(in, out, THREADS, first_warp_only);
}

/* ---- streams
 * -------------------------------------------------------------------------------------- Chunks of
 * numbers come to the device through slots by a copy stream while a compute stream takes what has
 * come: the pipelines of ops/ in small. */

enum { SLOTS = 2, CHUNKS = 6, CHUNK = 32 };

struct pipeline {
    cudaStream_t copy, compute;
    cudaEvent_t filled[SLOTS], emptied[SLOTS];
    int *host, *slots, *out;
};

static struct pipeline open_pipeline(void)
{
    struct pipeline line;
    must(cudaStreamCreateWithFlags(&line.copy, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&line.compute, cudaStreamNonBlocking));
    for (int slot = 0; slot < SLOTS; slot++) {
        must(cudaEventCreateWithFlags(&line.filled[slot], cudaEventDisableTiming));
        must(cudaEventCreateWithFlags(&line.emptied[slot], cudaEventDisableTiming));
    }
    line.host = pinned_block(CHUNKS * CHUNK);
    for (int i = 0; i < CHUNKS * CHUNK; i++)
        line.host[i] = input_at(i);
    line.slots = device_block(SLOTS * CHUNK);
    line.out = device_block(CHUNKS * CHUNK);
    return line;
}

static int close_pipeline(struct pipeline *line)
{
    must(cudaStreamSynchronize(line->compute));
    must(cudaStreamSynchronize(line->copy));
    must(cudaStreamDestroy(line->copy));
    must(cudaStreamDestroy(line->compute));
    for (int slot = 0; slot < SLOTS; slot++) {
        must(cudaEventDestroy(line->filled[slot]));
        must(cudaEventDestroy(line->emptied[slot]));
    }
    must(cudaFreeHost(line->host));
    return count_wrong(line->slots, line->out, CHUNKS * CHUNK, input_at);
}

static int run_pipeline(bool wait_filled, bool wait_emptied)
{
    struct pipeline line = open_pipeline();
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int slot = chunk % SLOTS, *at = line.slots + slot * CHUNK;
        if (wait_emptied)
            must(cudaStreamWaitEvent(line.copy, line.emptied[slot], 0));
        must(cudaMemcpyAsync(
            at, line.host + chunk * CHUNK, CHUNK * sizeof *at, cudaMemcpyHostToDevice, line.copy));
        must(cudaEventRecord(line.filled[slot], line.copy));
        if (wait_filled)
            must(cudaStreamWaitEvent(line.compute, line.filled[slot], 0));
        must(launch(
            copy_all<false>, 1, CHUNK, 0, line.compute, at, line.out + chunk * CHUNK, CHUNK));
        must(cudaEventRecord(line.emptied[slot], line.compute));
    }
    return close_pipeline(&line);
}

static int stale_slot(bool planted)
{
    return run_pipeline(!planted, true);
}

static int early_reuse_of_a_slot(bool planted)
{
    return run_pipeline(true, !planted);
}

/* The host fills its pinned buffer again before the copy from it is over. */
static int early_reuse_of_a_host_buffer(bool planted)
{
    struct pipeline line = open_pipeline();
    int *buffer = pinned_block(CHUNK);
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        for (int i = 0; i < CHUNK; i++)
            buffer[i] = input_at(chunk * CHUNK + i);
        must(cudaMemcpyAsync(line.out + chunk * CHUNK, buffer, CHUNK * sizeof *buffer,
            cudaMemcpyHostToDevice, line.copy));
        if (!planted)
            must(cudaStreamSynchronize(line.copy));
    }
    must(cudaStreamSynchronize(line.copy));
    must(cudaFreeHost(buffer));
    return close_pipeline(&line);
}

static int copy_from_memory_that_is_not_pinned(bool planted)
{
    struct pipeline line = open_pipeline();
    int *plain = (int *)malloc(CHUNKS * CHUNK * sizeof *plain);
    for (int i = 0; plain && i < CHUNKS * CHUNK; i++)
        plain[i] = input_at(i);
    must(cudaMemcpyAsync(line.out, planted ? plain : line.host, CHUNKS * CHUNK * sizeof *plain,
        cudaMemcpyHostToDevice, line.copy));
    must(cudaStreamSynchronize(line.copy));
    free(plain);
    return close_pipeline(&line);
}

/* ---- what a sanitizer alone can see ---------------------------------------------------------- */

static int host_touches_device_memory(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    must(cudaMemcpy(out, in, COUNT * sizeof *in, cudaMemcpyDeviceToDevice));
    int wrong = planted && in[1] != input_at(1);
    return wrong + count_wrong(in, out, COUNT, input_at);
}

/* Copies four numbers at a time, which must lie on 16 bytes. */
static __global__ void copy_by_four(const int *in, int *out)
{
    *(struct int4 *)(out + 4 * threadIdx.x) = *(const struct int4 *)(in + 4 * threadIdx.x);
}

static int one_later(int i)
{
    return input_at(i + 1);
}

static int misaligned_load(bool planted)
{
    int *in = input_block(COUNT), *out = device_block(COUNT);
    must(launch(copy_by_four, 1, 8, 0, NULL, planted ? in + 1 : in, out));
    return count_wrong(in, out, 32, planted ? one_later : input_at);
}

/* ---- the list -------------------------------------------------------------------------------- */

struct planted_fault {
    const char *name;
    int (*run)(bool planted); /* how many results are wrong */
    const char *seen_by;      /* sanitizer: by nothing else */
};

static const struct planted_fault faults[] = {
    {"missing_barrier", missing_barrier, "all"},
    {"early_reuse_of_a_tile", early_reuse_of_a_tile, "all"},
    {"missing_warp_barrier", missing_warp_barrier, "all"},
    {"uninitialised_shared_memory", uninitialised_shared_memory, "all"},
    {"shared_memory_overrun", shared_memory_overrun, "all"},
    {"read_one_too_far", read_one_too_far, "all"},
    {"write_one_too_far", write_one_too_far, "all"},
    {"uninitialised_sum", uninitialised_sum, "all"},
    {"order_of_blocks", order_of_blocks, "all"},
    {"use_after_free", use_after_free, "all"},
    {"lane_outside_the_mask", lane_outside_the_mask, "all"},
    {"wrong_lane", wrong_lane, "all"},
    {"barrier_of_some_threads", barrier_of_some_threads, "all"},
    {"mask_names_lanes_that_left", mask_names_lanes_that_left, "all"},
    {"stale_slot", stale_slot, "all"},
    {"early_reuse_of_a_slot", early_reuse_of_a_slot, "all"},
    {"early_reuse_of_a_host_buffer", early_reuse_of_a_host_buffer, "all"},
    {"copy_from_memory_that_is_not_pinned", copy_from_memory_that_is_not_pinned, "all"},
    {"host_touches_device_memory", host_touches_device_memory, "sanitizer"},
    {"misaligned_load", misaligned_load, "sanitizer"},
};

int main(int count, char **words)
{
    for (const struct planted_fault &fault : faults) {
        if (count < 2)
            printf("%s %s\n", fault.name, fault.seen_by);
        else if (!strcmp(words[1], fault.name))
            return fault.run(count > 2 && !strcmp(words[2], "planted")) != 0;
    }
    return count < 2 ? 0 : 2;
}
