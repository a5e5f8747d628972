/* Files in memory between processes. Every counter has one writer; what it counts is written before
 * it. */
#include "tests/cuda_emu/nccl_between.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>

enum rank_state { ABSENT, JOINED, LEFT };

struct shared_rank {
    std::atomic<int> state;
    int process, gpu;
    char host[64];
};

struct shared_channel {
    std::atomic<uint64_t> sent, expected, taken;
};

struct between {
    std::string path;
    int ranks;
    size_t bytes;
    void *memory;

    ~between()
    {
        munmap(memory, bytes);
    }
};

/* Before a message's bytes. */
struct message_header {
    char call[32];
    uint64_t bytes;
};

static struct shared_rank *rank_of(const struct between *it, int rank)
{
    return static_cast<struct shared_rank *>(it->memory) + rank;
}

static struct shared_channel *channel_of(const struct between *it, int from, int to)
{
    return reinterpret_cast<struct shared_channel *>(rank_of(it, it->ranks)) + from * it->ranks +
           to;
}

std::shared_ptr<struct between> between_open(const std::string &name, int ranks, bool make)
{
    std::string path = std::string(emulator_settings()->nccl_folder) + "/" + name;
    size_t count = (size_t)ranks;
    size_t bytes =
        count * sizeof(struct shared_rank) + count * count * sizeof(struct shared_channel);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600);
    if (file < 0 && !make && errno == ENOENT)
        return NULL;
    /* As long as it must be, whoever comes first; new bytes are zeros. */
    bool sound = file >= 0 && ftruncate(file, (off_t)bytes) == 0;
    void *memory =
        sound ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (memory == MAP_FAILED)
        fault("%s: %s", path.c_str(), strerror(errno));
    return std::shared_ptr<struct between>(new between{path, ranks, bytes, memory});
}

/* ---- ranks ----------------------------------------------------------------------------------- */

void between_join(struct between *it, int rank, int gpu)
{
    struct shared_rank *mine = rank_of(it, rank);
    mine->process = (int)getpid();
    mine->gpu = gpu;
    gethostname(mine->host, sizeof mine->host - 1);
    mine->state = JOINED;
}

void between_leave(struct between *it, int rank)
{
    rank_of(it, rank)->state = LEFT;
    for (int other = 0; other < it->ranks; other++)
        if (rank_of(it, other)->state == JOINED && !between_is_lost(it, other))
            return;
    unlink(it->path.c_str());
}

bool between_has_joined(const struct between *it, int rank)
{
    return rank_of(it, rank)->state != ABSENT;
}

bool between_same_gpu(const struct between *it, int a, int b)
{
    const struct shared_rank *left = rank_of(it, a), *right = rank_of(it, b);
    return left->gpu == right->gpu && !strcmp(left->host, right->host);
}

bool between_is_lost(const struct between *it, int rank)
{
    const struct shared_rank *other = rank_of(it, rank);
    return other->state == JOINED && kill(other->process, 0) && errno == ESRCH;
}

/* ---- messages -------------------------------------------------------------------------------- */

static std::string message_path(const struct between *it, int from, int to, uint64_t number)
{
    char text[64];
    snprintf(text, sizeof text, "-%d-%d-%llu", from, to, (unsigned long long)number);
    return it->path + text;
}

static bool write_all(int file, const void *data, size_t bytes)
{
    const char *from = static_cast<const char *>(data);
    while (bytes) {
        ssize_t written = write(file, from, bytes);
        if (written < 0)
            return false;
        from += written;
        bytes -= (size_t)written;
    }
    return true;
}

static bool read_all(int file, void *data, size_t bytes)
{
    char *to = static_cast<char *>(data);
    while (bytes) {
        ssize_t got = read(file, to, bytes);
        if (got <= 0)
            return false;
        to += got;
        bytes -= (size_t)got;
    }
    return true;
}

uint64_t between_send(
    struct between *it, int from, int to, const char *call, const void *data, size_t bytes)
{
    struct shared_channel *channel = channel_of(it, from, to);
    uint64_t number = channel->sent;
    std::string path = message_path(it, from, to, number);
    struct message_header header = {};
    snprintf(header.call, sizeof header.call, "%s", call);
    header.bytes = bytes;
    int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || !write_all(file, &header, sizeof header) || !write_all(file, data, bytes))
        fault("%s: %s", path.c_str(), strerror(errno));
    close(file);
    channel->sent = number + 1;
    return number;
}

uint64_t between_expect(struct between *it, int from, int to)
{
    struct shared_channel *channel = channel_of(it, from, to);
    uint64_t number = channel->expected;
    channel->expected = number + 1;
    return number;
}

bool between_was_taken(const struct between *it, int from, int to, uint64_t number)
{
    return channel_of(it, from, to)->taken > number;
}

bool between_take(struct between *it, int from, int to, uint64_t number, const char *call,
    void *data, size_t bytes)
{
    struct shared_channel *channel = channel_of(it, from, to);
    if (channel->sent <= number || channel->taken != number)
        return false;
    std::string path = message_path(it, from, to, number);
    struct message_header header;
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false; /* withdrawn */
    bool fits = read_all(file, &header, sizeof header) && header.bytes == bytes &&
                !strcmp(header.call, call) && read_all(file, data, bytes);
    close(file);
    if (!fits)
        return false; /* as on GPUs, nothing comes of it */
    unlink(path.c_str());
    channel->taken = number + 1;
    return true;
}

void between_withdraw(struct between *it, int from, int to, uint64_t number)
{
    unlink(message_path(it, from, to, number).c_str());
}

bool between_is_awaited(const struct between *it, int rank, int other, bool sends)
{
    const struct shared_channel *channel =
        sends ? channel_of(it, rank, other) : channel_of(it, other, rank);
    return sends ? channel->expected > channel->sent : channel->sent > channel->expected;
}
