/* Between the common half of a device (device.c, comm.c, order.c) and its backends.
 *
 * The common half keeps what is the same everywhere: accounting, blocks, sticky errors, tickets,
 * the order check, traffic. A backend brings storage, and a way to carry out operations stream by
 * stream. Adding one is a file with a `struct dev_backend` and a line in device.c's table. */
#pragma once
#include "device/blocks.h"
#include "device/device.h"

struct comm;
struct comm_transport;
struct exchange;
struct order;

struct dev_fault; /* the sticky failure: device.c */

struct device {
    struct dev_config config;
    const struct dev_backend *backend;
    void *state; /* the backend's */
    struct dev_fault *fault;
    struct mem_probe memory, host_memory;
    struct block_table blocks, host_blocks;
    struct stream *streams[DEV_STREAMS_MAX]; /* 0 is the main stream; owned */
    int stream_count;
    struct order *order; /* NULL unless check_order */
    double flops;        /* of what was launched */
};

struct stream {
    struct device *dev;
    const char *name;
    int index;
    int64_t last_ticket; /* of what was enqueued so far; the host thread's */
    void *state;         /* the backend's */
};

enum dev_copy { DEV_H2D, DEV_D2H, DEV_D2D };

enum dev_operation_kind {
    OP_LAUNCH,
    OP_COPY,
    OP_FILL,
    OP_BLANK, /* under check_order: a new block's life begins; fills it with NaN */
    OP_WAIT,  /* for another stream's ticket */
    OP_EXCHANGE,
    OP_MEMORY /* a reading of the memory counters, for the trace */
};

struct dev_operation {
    enum dev_operation_kind kind;
    int64_t ticket; /* the operation is complete when the stream's progress reaches it */
    union {
        struct {
            const struct kernel *kernel;
            bool on_host; /* dev_launch_host */
            char args[DEV_ARGS_MAX] __attribute__((aligned(16)));
        } launch;
        struct {
            enum dev_copy direction;
            void *to;
            const void *from;
            int64_t bytes;
            double enqueued_s; /* for the backend that paces */
        } copy;
        struct {
            void *to;
            int byte;
            int64_t bytes;
        } fill; /* OP_FILL and OP_BLANK */
        struct event wait;
        struct {
            struct comm *comm;
            struct exchange *exchange; /* owned by the operation */
        } exchange;
        struct mem_probe memory;
    };
};

/* Unless said otherwise a call comes from the rank's host thread. */
struct dev_backend {
    /* dev_facts; NULL where there is nothing to tell. From any thread. */
    enum dev_status (*facts)(struct dev_facts *facts, char *error, int size);

    /* dev_place; NULL where there is one device. From any thread. */
    enum dev_status (*place)(int rank, struct dev_place *place, char *error, int size);

    /* Sets dev->state; config is checked. On failure `error` says why and nothing is left behind.
     */
    enum dev_status (*open)(struct device *dev, char *error, int size);
    void (*close)(struct device *dev); /* after all streams are closed */

    /* Storage for a block, ARENA_ALIGNMENT-aligned and unique even for 0 bytes; NULL when there is
     * none. A released block may be handed out again at once (main-stream order). */
    void *(*take)(struct device *dev, int64_t bytes);
    void (*give)(struct device *dev, void *block, int64_t bytes);
    void *(*host_take)(struct device *dev, int64_t bytes);
    void (*host_give)(struct device *dev, void *block, int64_t bytes);

    bool (*stream_open)(struct stream *stream);  /* false: memory is short, or the device failed */
    void (*stream_close)(struct stream *stream); /* when all is done */

    /* Puts a copy of the operation at the stream's end and returns. False, with nothing done, when
     * memory is short. When the device has failed in the meantime the operation is dropped (an
     * exchange is freed), but its ticket is still reached. */
    bool (*enqueue)(struct stream *stream, const struct dev_operation *operation);

    /* The program has taken the stream's last ticket as an event. NULL where any ticket can be
     * waited for. */
    void (*record)(struct stream *stream);

    /* Blocks until the stream has reached the ticket. */
    void (*reach)(struct stream *stream, int64_t ticket);

    /* All streams are done. NULL where there is nothing to do then. */
    void (*settle)(struct device *dev);

    /* dev_phase; NULL where nobody looks on. */
    void (*phase)(struct device *dev, const char *name);

    double (*clock_s)(struct device *dev); /* all streams are done */

    /* dev_clock_on_s; NULL where there is one clock. */
    double (*machine_clock_s)(struct device *dev, int machine);

    /* To and from a live block, of either arena; all streams are done. */
    void (*write)(struct device *dev, void *to, const void *from, int64_t bytes);
    void (*read)(struct device *dev, void *to, const void *from, int64_t bytes);

    /* dev_fetch: what the stream has computed, or `simulated`; the stream is done. */
    void (*fetch)(
        struct stream *stream, void *to, const void *from, int64_t bytes, const void *simulated);

    /* dev_driver_bytes; NULL where there is no driver. */
    int64_t (*driver_bytes)(struct device *dev);

    /* Moves messages between thread ranks; between processes too if it spans_processes, else the
     * launcher's does. */
    const struct comm_transport *transport;
};

extern const struct dev_backend backend_cpu, backend_sim;
/* In device/cuda.cu; without CUDA objects in the program it has no address. */
extern const struct dev_backend backend_cuda __attribute__((weak));

/* Whether the device, the stream's device, is there and has not failed. */
bool dev_usable(const struct device *dev);
bool stream_usable(const struct stream *stream);

/* Gives the operation its ticket and enqueues it; false when the device has failed or fails now (an
 * exchange is then still the caller's). */
bool dev_submit(struct stream *stream, struct dev_operation *operation);

/* The block that holds [from, from + bytes), bytes > 0. NULL, and the device failed, when there is
 * none; `what` names the operation in the message. */
struct block *dev_find_range(struct device *dev, struct block_table *table, const void *from,
    int64_t bytes, const char *what);
