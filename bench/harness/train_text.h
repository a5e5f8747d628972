/* The text that a small model is trained on: bytes are its tokens. */
#pragma once
#include <stdint.h>

#define TRAIN_VOCAB 256
#define TRAIN_TEXT_MAX_BYTES (INT64_C(1) << 30)

struct train_text {
    unsigned char *bytes; /* owned */
    int64_t count;
};

/* One file, or with NULL the project's own documents, one after the other. 0, or -1 with a message:
 * no such file, unreadable, neither a file nor a pipe, fewer than `least` bytes or more than
 * TRAIN_TEXT_MAX_BYTES. */
int train_text_read(
    struct train_text *text, const char *file, int64_t least, char *error, int size);
void train_text_free(struct train_text *text);

/* Nats per byte that a model needs which knows how often each byte follows each other byte in this
 * very text: H(next | previous). What falls below it has learnt from more than one byte back. */
double train_text_bigram_nats(const struct train_text *text);

/* The tokens of a rank: `run` tokens from each of `sequences` windows of `length` + 1 bytes, from
 * place `first` on, and the bytes that follow them. Windows are a function of (seed, step, number
 * of the sequence), the same for every layout of ranks. */
struct train_window {
    uint64_t seed;
    int64_t step, first_sequence, sequences, length, first, run;
};
void train_text_batch(const struct train_text *text, const struct train_window *window,
    int32_t *tokens, int64_t *targets);
