/* A CUDA GPU as a device: its streams are the device's streams, and every operation is enqueued by
 * the rank's host thread at the call.
 *
 * Rank r works on GPU r mod the number of GPUs, r counted on its machine; ranks that share a GPU
 * have memory and streams of their own. The pace of copies and messages cannot be set: a rate is
 * refused. */
#include "device/cuda_device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---------------------------------------------------------------------------
 */

static enum dev_status find_gpu(
    const struct dev_config *config, int *ordinal, char *error, int size)
{
    struct dev_place place;
    enum dev_status status = cuda_place(config->rank, &place, error, size);
    if (status != DEV_OK)
        return status;
    if (config->h2d_bytes_per_s > 0 || config->d2h_bytes_per_s > 0) {
        snprintf(error, (size_t)size, "copies of a GPU cannot be paced; allowed: no rate");
        return DEV_FAILED;
    }
    *ordinal = place.ordinal;
    return DEV_OK;
}

static void close_cuda(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    cuda_nvtx_phase(dev, NULL);
    if (cuda_use(dev)) {
        cuda_trace_close(dev);
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

/* Whether the launch starts anything: one on nothing leaves no record behind. */
static bool is_work(const struct kernel *kernel, const void *args)
{
    struct kernel_cost cost = {};
    if (!kernel->cost)
        return true;
    kernel->cost(args, &cost);
    return cost.flops > 0 || cost.bytes > 0;
}

static void launch(struct stream *stream, const struct dev_operation *operation)
{
    const struct kernel *kernel = operation->launch.kernel;
    const void *args = operation->launch.args;
    struct device *dev = stream->dev;
    char what[96];
    if (!kernel->cuda) {
        dev_fail(dev, DEV_FAILED, "kernel '%s' is not written for CUDA", kernel->name);
        return;
    }
    struct cuda_span *span = dev->config.trace && is_work(kernel, args)
                                 ? cuda_trace_begin(stream, TRACE_KERNEL, kernel->name, true)
                                 : NULL;
    cudaError_t error = (cudaError_t)kernel->cuda(args, (void *)cuda_handle(stream));
    cuda_trace_end(stream, span);
    if (error == cudaSuccess)
        return;
    snprintf(what, sizeof what, "the launch of kernel '%s'", kernel->name);
    cuda_check(dev, error, what, __FILE__, __LINE__);
}

/* A kernel that a schedule leaves to the host. */
struct host_work {
    const struct stream *stream;
    struct dev_operation operation;
};

/* On a thread of CUDA's, in stream order; no call of CUDA is allowed here. */
static void run_host_work(void *argument)
{
    struct host_work *work = (struct host_work *)argument;
    struct device *dev = work->stream->dev;
    const struct kernel *kernel = work->operation.launch.kernel;
    const struct dev_team *team = &cuda_of(dev)->team;
    if (dev_status(dev) == DEV_OK) {
        int token = team->pool ? pool_enter(team->pool) : 0;
        struct trace_span span = {
            dev->config.rank, TRACE_KERNEL, work->stream->name, kernel->name, timing_now_s(), 0};
        if (team->pool)
            pool_begin_work(team->pool);
        kernel->cpu(work->operation.launch.args, team->pool ? team : NULL);
        if (team->pool) {
            pool_end_work(team->pool);
            pool_leave(team->pool, token);
        }
        span.end_s = timing_now_s();
        trace_add_span(dev->config.trace, &span);
    }
    free(work);
}

static bool launch_host(struct stream *stream, const struct dev_operation *operation)
{
    struct host_work *work = (struct host_work *)malloc(sizeof *work);
    if (!work)
        return false;
    work->stream = stream;
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
    static const char *const names[] = {"h2d", "d2h", "d2d"};
    struct cuda_span *span =
        cuda_trace_begin(stream, TRACE_COPY, names[operation->copy.direction], true);
    CUDA_DO(stream->dev,
        cudaMemcpyAsync(operation->copy.to, operation->copy.from, (size_t)operation->copy.bytes,
            kinds[operation->copy.direction], cuda_handle(stream)));
    cuda_trace_end(stream, span);
}

static void fill(struct stream *stream, const struct dev_operation *operation)
{
    if (!operation->fill.bytes)
        return;
    struct cuda_span *span =
        operation->kind == OP_FILL ? cuda_trace_begin(stream, TRACE_KERNEL, "fill", true) : NULL;
    CUDA_DO(stream->dev, cudaMemsetAsync(operation->fill.to, operation->fill.byte,
                             (size_t)operation->fill.bytes, cuda_handle(stream)));
    cuda_trace_end(stream, span);
}

static void exchange(struct stream *stream, const struct dev_operation *operation)
{
    struct comm *comm = operation->exchange.comm;
    struct cuda_span *span =
        cuda_trace_begin(stream, TRACE_MESSAGE, operation->exchange.exchange->label, false);
    comm->transport->exchange(comm, stream, operation->exchange.exchange);
    cuda_trace_end(stream, span);
}

/* False when the GPU cannot be used; the operation is dropped. */
static bool is_ready(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    return cuda_use(dev) && (!dev->config.trace || cuda->trace || cuda_trace_open(dev));
}

static bool enqueue(struct stream *stream, const struct dev_operation *operation)
{
    if (!is_ready(stream->dev)) {
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
        exchange(stream, operation);
        break;
    case OP_MEMORY:
        cuda_trace_memory(stream, &operation->memory);
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
    .facts = cuda_facts,
    .place = cuda_place,
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
    .settle = cuda_settle,
    .phase = cuda_nvtx_phase,
    .clock_s = clock_s,
    .machine_clock_s = NULL,
    .write = transfer,
    .read = transfer,
    .fetch = fetch,
    .driver_bytes = cuda_driver_bytes,
    .transport = &transport_cuda,
};
