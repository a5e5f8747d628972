/* The inside of the emulator. One lock serves everything: an operation runs while it is held, so
 * one kernel runs at a time in a process. Functions here are called with the lock held unless said
 * otherwise. */
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include "tests/cuda_emu/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif

/* What unwritten memory holds: NaN as FP32 and as BF16, -1 as an integer. */
#define POISON 0xff

/* ---- settings (settings.cpp): CUDA_EMU_*, read once ------------------------------------------ */

enum order { ORDER_FORWARD, ORDER_REVERSE, ORDER_RANDOM };
enum progress { PROGRESS_LATE, PROGRESS_EARLY, PROGRESS_RANDOM };

enum cupti_behaviour { CUPTI_ON, CUPTI_BUSY, CUPTI_DROPS };

struct settings {
    enum order order; /* of the threads of a block, and of the blocks */
    uint64_t order_seed;
    enum progress progress; /* of the streams */
    uint64_t progress_seed;
    int devices;          /* that the process sees */
    int gpus[64];         /* which of the machine's each of them is */
    int64_t memory_bytes; /* of each device */
    int64_t nccl_fails;   /* which group of NCCL fails, counted from 1; 0: none */
    enum cupti_behaviour cupti;
    int64_t cublaslt_varies_below; /* products of fewer rows are summed otherwise; 0: none */
    const char *nccl_folder;       /* for messages of NCCL between processes */
    const char *coverage; /* NULL, or the file that a program appends the kernels that ran to */
};

const struct settings *emulator_settings(void); /* any thread, with or without the lock */

/* A random number below `bound`. */
uint64_t random_below(uint64_t *state, uint64_t bound);

/* Says what was done wrong, in which kernel and thread, and ends the process. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- kernels (block.cpp, symbols.cpp) -------------------------------------------------------- */

struct kernel_launch {
    const void *kernel;
    struct dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> body;
};

void run_kernel(const struct kernel_launch *launch);
/* Writes " in kernel K, block (x, y, z), thread (x, y, z)", or nothing between kernels. */
void describe_place(char *text, int size);

/* The function's demangled name; its address when the program was stripped. */
void symbol_name(const void *function, char *name, int size);
/* For CUDA_EMU_COVERAGE. */
void note_execution(const void *kernel);

/* ---- streams (stream.cpp) -------------------------------------------------------------------- */

extern std::mutex lock;
extern std::condition_variable changed; /* something was enqueued or completed */

struct emulated_stream;

/* An operation that is tried again until it is complete. */
struct rendezvous {
    virtual ~rendezvous()
    {
    }
    /* Comes to the stream's head, again and again, until it gives true. */
    virtual bool complete(void) = 0;
    /* A stream that must move before this can be complete; NULL when none can. */
    virtual struct emulated_stream *awaited(void) = 0;
};

cudaError_t enqueue_work(cudaStream_t stream, std::function<void()> work);
cudaError_t enqueue_rendezvous(cudaStream_t stream, std::shared_ptr<struct rendezvous> meeting);
/* Tries to get the stream on; false when nothing can move now. */
bool advance_stream(cudaStream_t stream);
/* Blocks until everything on all streams of the device is complete; gives up the lock meanwhile. */
void drain_device(std::unique_lock<std::mutex> *held, int device);
/* The same for the default stream of the device. */
void drain_default(std::unique_lock<std::mutex> *held, int device);
/* The stream's device, -1 when there is no such stream. */
int device_of(cudaStream_t stream);

/* ---- activity records (cupti.cpp) ------------------------------------------------------------ */

/* `work` as it was called, and with a record of when it ran where somebody wants one. */
enum recorded_work { RECORDED_KERNEL, RECORDED_COPY, RECORDED_FILL };
std::function<void()> recorded(enum recorded_work kind, std::function<void()> work);
/* A block was taken from a pool or given back, in stream order; what the pool then holds. */
void note_memory(const void *address, size_t bytes, int device, bool taken, int64_t used_bytes,
    int64_t pool_bytes);

/* ---- the calling thread (runtime.cpp; no lock needed) ---------------------------------------- */

int current_device(void);
/* Keeps an error for cudaGetLastError and gives it back. */
cudaError_t remember(cudaError_t error);
/* cudaErrorNotPermitted in a host function, where CUDA must not be called; cudaErrorNoDevice where
 * the processor lacks what the kernels are compiled for. */
cudaError_t permitted(void);
/* The thread runs a host function from here on, or no longer. */
void set_in_host_function(bool inside);
