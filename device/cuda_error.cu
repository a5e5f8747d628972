/* What becomes of an error of CUDA: the first one is the device's failure, with the call that
 * returned it. Errors of work that was enqueued earlier come back from whatever call is next; the
 * message says which call that was, and cannot say more. */
#include "device/cuda_device.h"
#include <stdio.h>

void cuda_describe(cudaError_t error, const char *call, char *text, int size)
{
    snprintf(text, (size_t)size, "%s (%s) from %s", cudaGetErrorString(error),
        cudaGetErrorName(error), call);
}

bool cuda_check(struct device *dev, cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess)
        return true;
    char text[192];
    cudaGetLastError(); /* so that it is not taken for the next call's, where it is not sticky */
    cuda_describe(error, call, text, sizeof text);
    dev_fail(dev, error == cudaErrorMemoryAllocation ? DEV_OUT_OF_MEMORY : DEV_FAILED,
        "%s, %s:%d, rank %d, GPU %d", text, file, line, dev->config.rank, cuda_of(dev)->ordinal);
    return false;
}

bool cuda_use(struct device *dev)
{
    return CUDA_DO(dev, cudaSetDevice(cuda_of(dev)->ordinal));
}
