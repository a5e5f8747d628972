/* What the environment asks of the emulator, and how it ends a program that did something wrong. */
#include "tests/cuda_emu/emulator.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

[[noreturn]] static void refuse(const char *name, const char *value, const char *allowed)
{
    fprintf(stderr, "cuda emulator: %s is '%s'; allowed: %s\n", name, value, allowed);
    exit(2);
}

static int64_t read_number(const char *name, int64_t otherwise, int64_t least, int64_t most)
{
    const char *value = getenv(name);
    if (!value)
        return otherwise;
    char *end = NULL, allowed[80];
    long long number = strtoll(value, &end, 10);
    snprintf(allowed, sizeof allowed, "%lld to %lld", (long long)least, (long long)most);
    if (end == value || *end || number < least || number > most)
        refuse(name, value, allowed);
    return number;
}

/* The index of the word; after the last one, "random:SEED". */
static int read_word(const char *name, const char *const words[2], uint64_t *seed)
{
    const char *value = getenv(name);
    char allowed[80];
    if (!value || !strcmp(value, words[0]))
        return 0;
    if (!strcmp(value, words[1]))
        return 1;
    char *end = NULL;
    if (!strncmp(value, "random:", 7)) {
        *seed = strtoull(value + 7, &end, 10);
        if (end != value + 7 && !*end)
            return 2;
    }
    snprintf(allowed, sizeof allowed, "%s, %s, random:SEED", words[0], words[1]);
    refuse(name, value, allowed);
}

/* CUDA_EMU_VISIBLE, "2,0": which of the machine's GPUs the process sees, in its order. */
static void read_visible(struct settings *settings)
{
    const char *text = getenv("CUDA_EMU_VISIBLE");
    int count = settings->devices, seen = 0;
    char allowed[80];
    for (int i = 0; !text && i < count; i++)
        settings->gpus[i] = i;
    if (!text)
        return;
    snprintf(allowed, sizeof allowed, "at most %d of 0 to %d, apart by commas", count, count - 1);
    for (const char *rest = text; *rest; seen++) {
        char *end = NULL;
        long gpu = strtol(rest, &end, 10);
        if (end == rest || (*end && *end != ',') || gpu < 0 || gpu >= count || seen == count)
            refuse("CUDA_EMU_VISIBLE", text, allowed);
        settings->gpus[seen] = (int)gpu;
        rest = *end ? end + 1 : end;
    }
    settings->devices = seen;
}

static enum cupti_behaviour read_cupti(void)
{
    const char *value = getenv("CUDA_EMU_CUPTI");
    if (!value || !strcmp(value, "on"))
        return CUPTI_ON;
    if (strcmp(value, "busy") && strcmp(value, "drops"))
        refuse("CUDA_EMU_CUPTI", value, "on, busy, drops");
    return strcmp(value, "busy") ? CUPTI_DROPS : CUPTI_BUSY;
}

static struct settings read_settings(void)
{
    static const char *const orders[] = {"forward", "reverse"}, *const progress[] = {
                                                                    "late", "early"};
    struct settings read = {};
    read.order = (enum order)read_word("CUDA_EMU_ORDER", orders, &read.order_seed);
    read.progress = (enum progress)read_word("CUDA_EMU_STREAMS", progress, &read.progress_seed);
    read.devices = (int)read_number("CUDA_EMU_DEVICES", 1, 0, 64);
    read.memory_bytes = read_number("CUDA_EMU_MEMORY_BYTES", 8LL << 30, 1, INT64_MAX);
    read.nccl_fails = read_number("CUDA_EMU_NCCL_FAILS", 0, 1, INT64_MAX);
    read.cupti = read_cupti();
    read.cublaslt_varies_below = read_number("CUDA_EMU_CUBLASLT", 0, 1, INT64_MAX);
    read.nccl_folder = getenv("CUDA_EMU_NCCL_FOLDER");
    if (!read.nccl_folder)
        read.nccl_folder = "/dev/shm";
    read_visible(&read);
    read.coverage = getenv("CUDA_EMU_COVERAGE");
    return read;
}

const struct settings *emulator_settings(void)
{
    static const struct settings read = read_settings();
    return &read;
}

uint64_t random_below(uint64_t *state, uint64_t bound)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % bound;
}

void fault(const char *format, ...)
{
    char message[512], place[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    describe_place(place, sizeof place);
    fflush(stdout);
    fprintf(stderr, "cuda emulator: %s%s\n", message, place);
    abort();
}
