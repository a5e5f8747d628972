/* Reading the text, its bigram entropy, and windows of it. */
#include "bench/harness/train_text.h"
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "device/profiles_folder.h"
#include "probe/seed.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* 0; -1 with errno, EFBIG for what is longer than a text may be. */
static int append(struct train_text *text, FILE *from)
{
    enum { LEAST = 1 << 16 };
    while (text->count <= TRAIN_TEXT_MAX_BYTES) {
        int64_t block = text->count > LEAST ? text->count : LEAST;
        if (block > TRAIN_TEXT_MAX_BYTES + 1 - text->count)
            block = TRAIN_TEXT_MAX_BYTES + 1 - text->count;
        unsigned char *more = realloc(text->bytes, (size_t)(text->count + block));
        if (!more)
            return -1;
        text->bytes = more;
        int64_t got = (int64_t)fread(text->bytes + text->count, 1, (size_t)block, from);
        text->count += got;
        if (got < block)
            return ferror(from) ? -1 : 0;
    }
    errno = EFBIG;
    return -1;
}

/* A pipe may be read too; it ends when its writer does. A device may have no end. */
static bool is_text(FILE *from)
{
    struct stat facts;
    return fstat(fileno(from), &facts) == 0 && (S_ISREG(facts.st_mode) || S_ISFIFO(facts.st_mode));
}

static int read_file(struct train_text *text, const char *file, char *error, int size)
{
    FILE *from = fopen(file, "rb");
    bool readable = from && is_text(from);
    int status = readable ? append(text, from) : -1;
    if (from && !readable)
        snprintf(error, (size_t)size, "%s is neither a file nor a pipe", file);
    else if (status && errno == EFBIG)
        snprintf(error, (size_t)size, "%s has more than %lld bytes, allowed at most that", file,
            (long long)TRAIN_TEXT_MAX_BYTES);
    else if (status)
        snprintf(error, (size_t)size, "%s: %s", file, strerror(errno ? errno : ENOMEM));
    if (from)
        fclose(from);
    return status;
}

/* Documents lie beside the profiles: in the tree, or where they were installed. */
static FILE *open_document(const char *name)
{
    char relative[128], path[1200];
    snprintf(relative, sizeof relative, "../docs/%s", name);
    FILE *found = profiles_open(relative, path, sizeof path);
    if (found)
        return found;
    snprintf(relative, sizeof relative, "../../doc/flatpeak/%s", name);
    return profiles_open(relative, path, sizeof path);
}

static int read_documents(struct train_text *text, char *error, int size)
{
    static const char *const names[] = {"ARITHMETIC.md", "BASELINES.md", "CHECKPOINT.md",
        "DEVICE.md", "MEMORY.md", "OPTIMIZER.md", "RECORDS.md", "TRACES.md"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        errno = 0;
        FILE *from = open_document(names[i]);
        int status = from ? append(text, from) : -1;
        if (from)
            fclose(from);
        if (!status)
            continue;
        snprintf(error, (size_t)size, "the project's own %s was not found; name a file with --text",
            names[i]);
        return -1;
    }
    return 0;
}

int train_text_read(struct train_text *text, const char *file, int64_t least, char *error, int size)
{
    *text = (struct train_text){0};
    errno = 0;
    int status = file ? read_file(text, file, error, size) : read_documents(text, error, size);
    if (status == 0 && text->count < least) {
        snprintf(error, (size_t)size, "%s has %lld bytes, allowed at least %lld",
            file ? file : "the text", (long long)text->count, (long long)least);
        status = -1;
    }
    if (status)
        train_text_free(text);
    return status;
}

void train_text_free(struct train_text *text)
{
    free(text->bytes);
    *text = (struct train_text){0};
}

/* ---- entropy --------------------------------------------------------------------------------- */

static double plogp(double count, double total)
{
    return count > 0 ? count / total * log(count / total) : 0;
}

double train_text_bigram_nats(const struct train_text *text)
{
    static const int64_t symbols = TRAIN_VOCAB;
    int64_t *pairs = calloc((size_t)(symbols * symbols), sizeof *pairs);
    double nats = 0, total = (double)(text->count - 1);
    if (!pairs)
        return NAN;
    for (int64_t i = 0; i + 1 < text->count; i++)
        pairs[text->bytes[i] * symbols + text->bytes[i + 1]]++;
    for (int64_t previous = 0; previous < symbols; previous++) {
        double sum = 0, own = 0;
        for (int64_t next = 0; next < symbols; next++)
            sum += (double)pairs[previous * symbols + next];
        for (int64_t next = 0; next < symbols; next++)
            own += plogp((double)pairs[previous * symbols + next], sum);
        nats -= sum / total * own;
    }
    free(pairs);
    return nats;
}

/* ---- windows --------------------------------------------------------------------------------- */

void train_text_batch(const struct train_text *text, const struct train_window *window,
    int32_t *tokens, int64_t *targets)
{
    enum { WINDOWS = 90 }; /* the tensor number of the seeded places */
    for (int64_t s = 0; s < window->sequences; s++) {
        int64_t index = window->step * (INT64_C(1) << 20) + window->first_sequence + s;
        int64_t places = text->count - window->length;
        int64_t at = seed_index(window->seed, WINDOWS, index, places) + window->first;
        for (int64_t i = 0; i < window->run; i++) {
            tokens[s * window->run + i] = text->bytes[at + i];
            targets[s * window->run + i] = text->bytes[at + i + 1];
        }
    }
}
