/* One rank's device: an arena of memory with a byte limit, and in-order streams.
 *
 * A schedule is written once against this header; the backend decides whether a kernel is executed
 * (cpu), launched (cuda) or only accounted for (sim). What each call does on every backend is told
 * in docs/DEVICE.md.
 *
 * Errors are sticky. The first failure (out of memory, a failed kernel, an aborted communicator) is
 * kept in the device; from then on every call of this device is a no-op, dev_alloc returns NULL,
 * and the group's communicators are aborted so that no rank waits for this one. A schedule
 * therefore reads like a drawing: it enqueues its steps, and returns dev_status() at its end.
 *
 * Every call is made by the rank's own host thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "probe/memory.h"
#include "probe/trace.h"

struct device;
struct stream;
struct dev_pool;
struct profile;

enum dev_status {
    DEV_OK,
    DEV_OUT_OF_MEMORY, /* dev_memory()->failure names the live set */
    DEV_ABORTED,       /* another rank failed */
    DEV_FAILED,        /* dev_message() says what */
    DEV_UNAVAILABLE    /* the backend is not there */
};

enum dev_kind { DEV_CPU, DEV_SIM, DEV_CUDA };

/* What carries the messages between the ranks of the cuda device. */
enum dev_messages {
    DEV_MESSAGES_AUTO,   /* NCCL where every rank of several has a GPU of its own, else copies */
    DEV_MESSAGES_COPIES, /* copies between the ranks' memories, between processes by way of their
                            hosts; ranks may share a GPU */
    DEV_MESSAGES_NCCL
};

/* On how many machines one simulated device may run at once. */
#define DEV_MACHINES_MAX 12

struct dev_config {
    enum dev_kind kind;
    int rank;
    int64_t device_limit_bytes; /* 0 = no limit; simulated: what the profile's machine has */
    int64_t host_limit_bytes;   /* of pinned host memory; likewise, a rank's share */
    double h2d_bytes_per_s;     /* paced copies; 0 = as fast as they go */
    double d2h_bytes_per_s;
    bool serial_streams;   /* every stream is the main stream: no overlap */
    bool check_order;      /* prove that conflicting accesses are ordered by events */
    int kernel_threads;    /* width of one kernel; 0: the pool's threads, shared out by ranks_run */
    struct dev_pool *pool; /* outlives the device */
    struct trace *trace;   /* may be NULL */
    enum dev_messages messages; /* of the cuda device */
    /* Of the simulated device: what it runs on. The same program may run on several machines at
     * once, each with its own clocks; memory, traces and dev_clock_s are the first one's. */
    const struct profile *profiles; /* [machines], outlive the device */
    int machines;                   /* 0 = 1 */
};

/* What the devices of a kind are here. A number is 0 and a text empty where nobody knows. */
struct dev_facts {
    int count;            /* GPUs */
    char name[96];        /* "NVIDIA H200" */
    int64_t memory_bytes; /* of each */
    int multiprocessors;
    char capability[16]; /* "9.0" */
    char driver[48];     /* "580.65.06" */
    char runtime[16];    /* "13.0" */
    char messages[32];   /* "NCCL 2.28.3" */
};

/* DEV_UNAVAILABLE, and `error` says why, where there is none. Of the cuda device only. */
enum dev_status dev_facts(enum dev_kind kind, struct dev_facts *facts, char *error, int size);

/* Which GPU a rank's device is. */
struct dev_place {
    int ordinal;  /* among those that its process sees */
    char bus[24]; /* the same for the same GPU of a machine: "0000:1b:00.0" */
};

/* Of the cuda device only; the rank is one of this process's. */
enum dev_status dev_place(
    enum dev_kind kind, int rank, struct dev_place *place, char *error, int size);

/* Opens a device. On failure *out is NULL and `error` says why. */
enum dev_status dev_open(
    const struct dev_config *config, struct device **out, char *error, int size);

/* Waits for all streams, then releases everything, what the schedule left allocated included. */
void dev_close(struct device *dev);

enum dev_status dev_status(const struct device *dev);
const char *dev_message(const struct device *dev); /* "" while DEV_OK */
const struct dev_config *dev_config(const struct device *dev);

/* Makes the device fail with this status and message unless it failed before. */
void dev_fail(struct device *dev, enum dev_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Called once when the device first fails (the communicator uses it to abort its group). */
void dev_on_failure(struct device *dev, void (*notify)(void *context), void *context);

/* ---- memory ------------------------------------------------------------------------------------
 * Allocation and free happen in the program order of the main stream: a block freed now may be
 * handed out by the next dev_alloc, and what was enqueued on the main stream before the free still
 * sees the old contents. Another stream waits for a point of the main stream after the allocation
 * before it touches a new block, and the main stream waits for that stream before the block is
 * freed. Blocks are 256-byte aligned; new blocks hold unspecified bytes (NaN-filled under
 * check_order). A block of 0 bytes has an address of its own. `label` is copied. */
void *dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void dev_free(struct device *dev, void *block); /* NULL is fine */

/* Pinned host memory: the only host memory that an asynchronous copy or dev_launch_host may name.
 * It belongs to the host thread: before the host touches a block, or frees it, it waits (dev_sync,
 * dev_sync_event) for what uses it. On the simulated device it is address space that reads as zeros
 * until the host writes to it. */
void *dev_host_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void dev_host_free(struct device *dev, void *block);

struct mem_probe *dev_memory(struct device *dev);
struct mem_probe *dev_host_memory(struct device *dev);

/* What the host does from here on is this phase ("forward"); NULL: none. For profilers that watch
 * from outside. */
void dev_phase(struct device *dev, const char *name);

/* What the driver says that is in use on this device's GPU beyond what was when the device was
 * opened: by all ranks that share the GPU, with what the driver rounds up and keeps. It only grows
 * while the device is open. -1 where there is no driver. */
int64_t dev_driver_bytes(struct device *dev);

/* ---- streams and events ------------------------------------------------------------------------
 * An event is a value: a point in one stream's program. It needs no release and may be waited for
 * any number of times. A zero event (stream NULL) is always past. */
struct event {
    struct stream *stream;
    int64_t ticket;
};

struct stream *dev_main_stream(struct device *dev);

/* A further in-order stream ("copy", "dispatch"; the name appears in traces and is kept by
 * reference). Streams live until dev_close; asking again for a name gives the same stream. At most
 * DEV_STREAMS_MAX, the main stream included. NULL when the device has failed: every call takes a
 * NULL stream then and does nothing. */
#define DEV_STREAMS_MAX 16
struct stream *dev_stream(struct device *dev, const char *name);
struct device *stream_device(struct stream *stream);

/* The point after everything enqueued on the stream so far. */
struct event dev_record(struct stream *stream);

/* What is enqueued on `stream` from now on starts after the event. */
void dev_wait(struct stream *stream, struct event event);

/* dev_wait(later, dev_record(earlier)). */
void dev_wait_stream(struct stream *later, struct stream *earlier);

/* The host waits: for an event, for all streams of the device. */
void dev_sync_event(struct event event);
enum dev_status dev_sync(struct device *dev);

/* Seconds: the host's clock, or the simulated host's. Syncs first. */
double dev_clock_s(struct device *dev);

/* The same on one of the simulated device's machines; other devices have only one clock. */
double dev_clock_on_s(struct device *dev, int machine);

/* Whether nothing is stored or computed: memory is addresses, values are nobody's. */
bool dev_is_simulated(const struct device *dev);

/* ---- copies ------------------------------------------------------------------------------------
 * Asynchronous, in stream order; host sides must come from dev_host_alloc. */
void dev_copy_h2d(struct stream *stream, void *device_to, const void *host_from, int64_t bytes);
void dev_copy_d2h(struct stream *stream, void *host_to, const void *device_from, int64_t bytes);
void dev_copy_d2d(struct stream *stream, void *to, const void *from, int64_t bytes);
void dev_fill(struct stream *stream, void *to, int byte, int64_t bytes);

/* Blocking, after all streams, between a block (of the device or pinned) and any host memory; not
 * paced, not part of any schedule: for loading inputs and reading results. On the simulated device
 * dev_write does nothing and dev_read fills with zeros. */
void dev_write(struct device *dev, void *block_to, const void *host_from, int64_t bytes);
void dev_read(struct device *dev, void *host_to, const void *block_from, int64_t bytes);

/* A value that the schedule itself reads back and acts on (a norm, a flag): blocks until `stream`
 * has done what was enqueued, then copies at most DEV_FETCH_MAX bytes from a block (of the device
 * or pinned) to any host memory. The simulated device, which computes nothing, gives `simulated`
 * instead. After a failure host_to is left alone. */
#define DEV_FETCH_MAX 4096
void dev_fetch(struct stream *stream, void *host_to, const void *block_from, int64_t bytes,
    const void *simulated);

/* ---- kernels -----------------------------------------------------------------------------------
 * A kernel is a constant: its name, and what it is on each backend. `args` is a struct that is
 * copied at the launch (at most DEV_ARGS_MAX bytes); pointers in it are device memory. */
#define DEV_ARGS_MAX 384
#define DEV_ACCESS_MAX 12

/* The threads that run one kernel on the cpu backend. */
struct dev_team;
int team_size(const struct dev_team *team);

/* Calls part(context, i, parts) for i in [0, parts), on up to team_size threads; returns when all
 * are done. NULL runs them one after the other. */
void team_run(const struct dev_team *team, int parts,
    void (*part)(void *context, int index, int parts), void *context);

enum dev_rate { DEV_RATE_F32, DEV_RATE_BF16 };

/* What a launch costs, for the simulated clock and for throughput figures. */
struct kernel_cost {
    double flops;
    double bytes;       /* read and written, each operand once */
    enum dev_rate rate; /* which arithmetic rate its flops run at */
    int64_t m, n, k;    /* of a matrix product, else 0: small ones run below the peak rate */
    int64_t params;     /* that AdamW updates, else 0: a host's rate is known by the parameter */
};

/* One range that a launch touches. */
struct dev_access {
    const void *from;
    int64_t bytes;
    bool write;
};

struct kernel {
    const char *name;
    void (*cpu)(const void *args, const struct dev_team *team);
    int (*cuda)(const void *args, void *cuda_stream); /* NULL where not built */
    void (*cost)(const void *args, struct kernel_cost *cost);
    /* Fills at most DEV_ACCESS_MAX ranges and returns how many. A strided operand is one range from
     * its first to its last byte. Needed under check_order. */
    int (*access)(const void *args, struct dev_access *ranges);
};

void dev_launch(
    struct stream *stream, const struct kernel *kernel, const void *args, size_t args_bytes);

/* Runs the kernel's cpu function in stream order on every backend, with the pool's threads;
 * pointers in `args` are pinned host memory. For work that a schedule leaves to the host, such as
 * an optimizer whose state stays there. */
void dev_launch_host(
    struct stream *stream, const struct kernel *kernel, const void *args, size_t args_bytes);

/* FLOP of all kernels launched on this device so far, on the host's too, by their cost functions: a
 * whole number, exact below 2^53. */
double dev_flops(const struct device *dev);

/* ---- the pool ----------------------------------------------------------------------------------
 * `threads` is the process's total for kernels: at most that many threads execute kernels at one
 * time, whatever the number of ranks and streams. */
struct dev_pool *dev_pool_create(int threads);
void dev_pool_free(struct dev_pool *pool);
int dev_pool_threads(const struct dev_pool *pool);

/* Runs body with a team of `width` threads of the pool on the calling thread: for programs and
 * tests that call a kernel's cpu function directly. */
void dev_pool_run(struct dev_pool *pool, int width,
    void (*body)(void *context, const struct dev_team *team), void *context);
