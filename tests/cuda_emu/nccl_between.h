/* What communicators of the emulated NCCL share when their ranks are in several processes: a file
 * in memory with each rank's state and counts of messages, and one file for each message on its
 * way, in CUDA_EMU_NCCL_FOLDER. A message is written when its sender's stream comes to it and is
 * gone when its receiver has taken it. The lock is held in all calls. */
#pragma once
#include <memory>
#include <string>
#include "tests/cuda_emu/emulator.h"

struct between;

/* The shared part under that name: made when it is not there, or NULL then. */
std::shared_ptr<struct between> between_open(const std::string &name, int ranks, bool make);

/* The rank of this process, on that GPU, is there; it is there no longer. When the last one has
 * left the files go. */
void between_join(struct between *it, int rank, int gpu);
void between_leave(struct between *it, int rank);

bool between_has_joined(const struct between *it, int rank);   /* now or before */
bool between_same_gpu(const struct between *it, int a, int b); /* both have joined */
bool between_is_lost(const struct between *it, int rank);      /* its process has ended */

/* Messages from one rank to another are numbered; the calls return the number. */
uint64_t between_send(
    struct between *it, int from, int to, const char *call, const void *data, size_t bytes);
uint64_t between_expect(struct between *it, int from, int to);

/* Whether the message was taken. */
bool between_was_taken(const struct between *it, int from, int to, uint64_t number);
/* Takes the message if it has come and is what is expected. */
bool between_take(struct between *it, int from, int to, uint64_t number, const char *call,
    void *data, size_t bytes);
/* The sender no longer sends it. */
void between_withdraw(struct between *it, int from, int to, uint64_t number);

/* Whether `other` has come to a message with `rank`, sent by `rank` or not, that `rank` has not
 * come to. */
bool between_is_awaited(const struct between *it, int rank, int other, bool sends);
