/* What nccl.cpp, groups of messages, and nccl_comm.cpp, communicators, share. */
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>
#include "tests/cuda_emu/nccl.h"
#include "tests/cuda_emu/nccl_between.h"

struct transfer {
    const char *call; /* both sides name the same collective, or send and receive */
    bool sends;
    int peer;
    char *data;
    size_t bytes;
    bool met;
    uint64_t number; /* with a rank of another process, once it is posted */
};

struct group_operation;

/* What is posted from one rank to another of this process and has not met, oldest first. */
struct channel {
    std::deque<struct transfer *> sends, receives;
};

/* The communicators of this process that share an id. */
struct clique {
    std::string name;
    bool is_ours; /* the id is this process's */
    int size, joined;
    ncclResult_t state; /* ncclInProgress until all have joined */
    const char *trouble;
    std::vector<struct member *> members;    /* by rank; NULL: not there, or gone */
    std::vector<bool> local;                 /* the rank is, or was, a member here */
    std::shared_ptr<struct between> between; /* NULL: all are in this process, as far as is known */
    std::map<std::pair<int, int>, struct channel> channels;
};

/* One rank's part in it. */
struct member : std::enable_shared_from_this<struct member> {
    std::shared_ptr<struct clique> clique;
    int rank, device;
    bool aborted, finalizing;
    ncclResult_t error;
    std::deque<std::shared_ptr<struct group_operation>> pending; /* enqueued and not complete */
};

struct emulated_comm {
    std::shared_ptr<struct member> member;
};

/* A group of calls on its stream. */
struct group_operation : rendezvous {
    std::shared_ptr<struct member> member;
    std::vector<struct transfer> transfers;
    cudaStream_t stream;
    bool posted = false, failing = false;

    bool complete(void) override;
    struct emulated_stream *awaited(void) override;
};

/* What is posted on the channel of a transfer between ranks of this process. */
struct channel *channel_of(const struct member *member, const struct transfer *transfer);
