/* arith_device - the hash of all 2^32 results of exp and log on a CUDA device
 *
 * kernels/arith.h promises the same bits on host and device. This program makes every result on the
 * device, hashes them as tests/arith_hash.h says and compares with the hashes that the CPU is held
 * to.
 *
 * `make cuda` compiles it; to link it where a device is:
 *     nvcc build/cuda/tests/arith_device.o -lxxhash -o arith_device
 *
 * Exit status: 0 both equal, 1 a hash differs, 3 no device or an error of the device. */
#include <cstdio>
#include <cstdlib>
#include "kernels/launch.cuh"
#include "tests/arith_hash.h"

enum function { FUNCTION_EXP, FUNCTION_LOG };
enum { EXIT_ENVIRONMENT = 3 };

/* Blocks of the hash per launch: 64 MiB of results. */
#define BLOCKS_AT_ONCE 256
#define RESULTS_AT_ONCE (BLOCKS_AT_ONCE * ARITH_BLOCK)

__global__ void evaluate(enum function function, uint32_t first, float *results)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = f32_from_bits(first + i);
    results[i] = function == FUNCTION_EXP ? arith_exp(value) : arith_log(value);
}

/* 0, or -1 after a line that names the call. */
static int check(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return 0;
    fprintf(stderr, "arith_device: %s: %s\n", call, cudaGetErrorString(error));
    return -1;
}

/* Block hashes [first_block, first_block + BLOCKS_AT_ONCE). */
static int hash_blocks(enum function function, int64_t first_block, float *device_results,
    float *results, uint64_t *block_hashes)
{
    const int threads = 256;
    const uint32_t first = (uint32_t)(first_block * ARITH_BLOCK);
    if (check(launch(evaluate, dim3((unsigned)(RESULTS_AT_ONCE / threads)), dim3(threads), 0, NULL,
                  function, first, device_results),
            "launch") ||
        check(cudaMemcpy(results, device_results, RESULTS_AT_ONCE * sizeof *results,
                  cudaMemcpyDeviceToHost),
            "cudaMemcpy"))
        return -1;
    for (int64_t block = 0; block < BLOCKS_AT_ONCE; block++)
        block_hashes[first_block + block] = arith_block_hash(results + block * ARITH_BLOCK);
    return 0;
}

/* Prints the hash; 0 equal, 1 different, 3 an error. */
static int compare(enum function function, uint64_t expected, float *device_results, float *results,
    uint64_t *block_hashes)
{
    const char *name = function == FUNCTION_EXP ? "exp" : "log";
    for (int64_t block = 0; block < ARITH_BLOCKS; block += BLOCKS_AT_ONCE)
        if (hash_blocks(function, block, device_results, results, block_hashes))
            return EXIT_ENVIRONMENT;
    uint64_t hash = arith_combine_hashes(block_hashes);
    printf("%s %016llx %s\n", name, (unsigned long long)hash,
        hash == expected ? "as on the CPU" : "DIFFERS from the CPU");
    return hash != expected;
}

static int compare_both(void)
{
    float *device_results = NULL;
    if (check(cudaMalloc((void **)&device_results, RESULTS_AT_ONCE * sizeof(float)), "cudaMalloc"))
        return EXIT_ENVIRONMENT;
    float *results = (float *)malloc(RESULTS_AT_ONCE * sizeof *results);
    uint64_t *block_hashes = (uint64_t *)malloc(ARITH_BLOCKS * sizeof *block_hashes);
    int status = EXIT_ENVIRONMENT;
    if (results && block_hashes) {
        status = compare(FUNCTION_EXP, ARITH_EXP_HASH, device_results, results, block_hashes);
        if (status != EXIT_ENVIRONMENT)
            status |= compare(FUNCTION_LOG, ARITH_LOG_HASH, device_results, results, block_hashes);
    } else {
        fprintf(stderr, "arith_device: no memory\n");
    }
    free(block_hashes);
    free(results);
    if (check(cudaFree(device_results), "cudaFree"))
        status = EXIT_ENVIRONMENT;
    return status;
}

int main(void)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || !devices) {
        fprintf(stderr, "arith_device: no CUDA device here (%s)\n",
            error != cudaSuccess ? cudaGetErrorString(error) : "none found");
        return EXIT_ENVIRONMENT;
    }
    struct cudaDeviceProp properties;
    if (check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"))
        return EXIT_ENVIRONMENT;
    printf("device 0: %s, sm_%d%d\n", properties.name, properties.major, properties.minor);
    return compare_both();
}
