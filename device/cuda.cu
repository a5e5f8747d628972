/* A CUDA GPU as a device: its streams are the device's streams, and every operation is enqueued by
 * the rank's host thread at the call.
 *
 * Rank r works on GPU r mod the number of GPUs; ranks that share a GPU have memory and streams of
 * their own. The pace of copies and messages cannot be set: a rate is refused. */
#include "device/cuda_device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---------------------------------------------------------------------------
 */

static enum dev_status find_gpu(
    const struct dev_config *config, int *ordinal, char *error, int size)
{
    int count = 0;
    char text[192];
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count < 1) {
        cudaGetLastError();
        cuda_describe(code, "cudaGetDeviceCount", text, sizeof text);
        snprintf(error, (size_t)size, "no CUDA device: %s",
            code == cudaSuccess ? "the driver shows none" : text);
        return DEV_UNAVAILABLE;
    }
    if (config->h2d_bytes_per_s > 0 || config->d2h_bytes_per_s > 0) {
        snprintf(error, (size_t)size, "copies of a GPU cannot be paced; allowed: no rate");
        return DEV_FAILED;
    }
    *ordinal = config->rank % count;
    return DEV_OK;
}

static void close_cuda(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    if (cuda_use(dev)) {
        cuda_memory_close(dev);
        for (int i = 0; i < cuda->spare_count; i++)
            CUDA_DO(dev, cudaEventDestroy(cuda->spare_events[i]));
    }
    free(cuda->spare_events);
    free(cuda);
    dev->state = NULL;
}

static enum dev_status open_cuda(struct device *dev, char *error, int size)
{
    const struct dev_config *config = &dev->config;
    int ordinal = 0;
    enum dev_status status = find_gpu(config, &ordinal, error, size);
    if (status != DEV_OK)
        return status;
    struct cuda *cuda = (struct cuda *)calloc(1, sizeof *cuda);
    if (!cuda) {
        snprintf(error, (size_t)size, "no memory for rank %d's device", config->rank);
        return DEV_FAILED;
    }
    dev->state = cuda;
    cuda->ordinal = ordinal;
    cuda->team.pool = config->pool;
    cuda->team.size = config->kernel_threads;
    if (config->pool && cuda->team.size > dev_pool_threads(config->pool))
        cuda->team.size = dev_pool_threads(config->pool);
    if (cuda_use(dev) && cuda_memory_open(dev))
        return DEV_OK;
    status = dev_status(dev);
    snprintf(error, (size_t)size, "%s", dev_message(dev));
    close_cuda(dev);
    return status;
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

static void launch(struct stream *stream, const struct dev_operation *operation)
{
    const struct kernel *kernel = operation->launch.kernel;
    struct device *dev = stream->dev;
    char what[96];
    if (!kernel->cuda) {
        dev_fail(dev, DEV_FAILED, "kernel '%s' is not written for CUDA", kernel->name);
        return;
    }
    cudaError_t error =
        (cudaError_t)kernel->cuda(operation->launch.args, (void *)cuda_handle(stream));
    if (error == cudaSuccess)
        return;
    snprintf(what, sizeof what, "the launch of kernel '%s'", kernel->name);
    cuda_check(dev, error, what, __FILE__, __LINE__);
}

/* A kernel that a schedule leaves to the host. */
struct host_work {
    struct device *dev;
    struct dev_operation operation;
};

/* On a thread of CUDA's, in stream order; no call of CUDA is allowed here. */
static void run_host_work(void *argument)
{
    struct host_work *work = (struct host_work *)argument;
    const struct kernel *kernel = work->operation.launch.kernel;
    const struct dev_team *team = &cuda_of(work->dev)->team;
    if (dev_status(work->dev) == DEV_OK && team->pool) {
        pool_enter(team->pool);
        pool_begin_work(team->pool);
        kernel->cpu(work->operation.launch.args, team);
        pool_end_work(team->pool);
        pool_leave(team->pool);
    } else if (dev_status(work->dev) == DEV_OK) {
        kernel->cpu(work->operation.launch.args, NULL);
    }
    free(work);
}

static bool launch_host(struct stream *stream, const struct dev_operation *operation)
{
    struct host_work *work = (struct host_work *)malloc(sizeof *work);
    if (!work)
        return false;
    work->dev = stream->dev;
    work->operation = *operation;
    if (!CUDA_DO(stream->dev, cudaLaunchHostFunc(cuda_handle(stream), run_host_work, work)))
        free(work);
    return true;
}

/* ---- operations -------------------------------------------------------------------------------
 */

static void copy(struct stream *stream, const struct dev_operation *operation)
{
    static const cudaMemcpyKind kinds[] = {
        cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    CUDA_DO(stream->dev,
        cudaMemcpyAsync(operation->copy.to, operation->copy.from, (size_t)operation->copy.bytes,
            kinds[operation->copy.direction], cuda_handle(stream)));
}

static void fill(struct stream *stream, const struct dev_operation *operation)
{
    if (operation->fill.bytes)
        CUDA_DO(stream->dev, cudaMemsetAsync(operation->fill.to, operation->fill.byte,
                                 (size_t)operation->fill.bytes, cuda_handle(stream)));
}

static bool enqueue(struct stream *stream, const struct dev_operation *operation)
{
    struct comm *comm;
    if (!cuda_use(stream->dev)) {
        if (operation->kind == OP_EXCHANGE)
            exchange_free(operation->exchange.exchange);
        return true;
    }
    switch (operation->kind) {
    case OP_LAUNCH:
        if (operation->launch.on_host)
            return launch_host(stream, operation);
        launch(stream, operation);
        break;
    case OP_COPY:
        copy(stream, operation);
        break;
    case OP_FILL:
    case OP_BLANK:
        fill(stream, operation);
        break;
    case OP_WAIT:
        cuda_wait(stream, operation->wait);
        break;
    case OP_EXCHANGE:
        comm = operation->exchange.comm;
        comm->transport->exchange(comm, stream, operation->exchange.exchange);
        break;
    case OP_MEMORY:
        break;
    }
    return true;
}

/* ---- the host's side --------------------------------------------------------------------------
 */

static double clock_s(struct device *dev)
{
    (void)dev;
    return timing_now_s();
}

/* One of the two is a block, of the device or pinned; all streams are done. */
static void transfer(struct device *dev, void *to, const void *from, int64_t bytes)
{
    if (cuda_use(dev))
        CUDA_DO(dev, cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDefault));
}

static void fetch(
    struct stream *stream, void *to, const void *from, int64_t bytes, const void *simulated)
{
    struct device *dev = stream->dev;
    void *bounce = cuda_of(dev)->bounce;
    (void)simulated;
    if (cuda_use(dev) &&
        CUDA_DO(dev,
            cudaMemcpyAsync(bounce, from, (size_t)bytes, cudaMemcpyDefault, cuda_handle(stream))) &&
        cuda_poll(stream, NULL))
        memcpy(to, bounce, (size_t)bytes);
}

extern "C" const struct dev_backend backend_cuda = {
    .open = open_cuda,
    .close = close_cuda,
    .take = cuda_take,
    .give = cuda_give,
    .host_take = cuda_host_take,
    .host_give = cuda_host_give,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .enqueue = enqueue,
    .record = cuda_record,
    .reach = cuda_reach,
    .clock_s = clock_s,
    .machine_clock_s = NULL,
    .write = transfer,
    .read = transfer,
    .fetch = fetch,
    .driver_bytes = cuda_driver_bytes,
    .transport = &transport_cuda,
};
