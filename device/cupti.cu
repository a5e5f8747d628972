/* CUPTI's activity records. A record of a kernel or a copy names the call that enqueued it by a
 * correlation number; another record joins that number to the id that the thread had pushed. Both
 * come in buffers that CUPTI fills and hands back when it likes, so they are kept here until their
 * owner asks for them.
 *
 * The session is the process's: CUPTI's callbacks have no argument to find another by. */
#ifdef HAVE_CUPTI
#include "device/cupti.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <cupti.h>
extern "C" {
#include "probe/timing.h"
}

#define BUFFER_BYTES ((size_t)4 << 20)
#define BUFFER_ALIGNMENT 8

/* The entry points that are used. */
struct entries {
    void *library;
    decltype(&cuptiActivityEnable) enable;
    decltype(&cuptiActivityDisable) disable;
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
    decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp;
    decltype(&cuptiActivityFlushAll) flush_all;
    decltype(&cuptiActivityGetNextRecord) next_record;
    decltype(&cuptiActivityGetNumDroppedRecords) dropped;
    decltype(&cuptiActivityPushExternalCorrelationId) push;
    decltype(&cuptiActivityPopExternalCorrelationId) pop;
};

/* A call that enqueued something, and whose it was. */
struct link {
    uint32_t correlation;
    uint64_t id;
};

/* Something that ran. */
struct activity {
    uint32_t correlation;
    uint64_t begin_ns, end_ns;
};

/* What a call left in a pool. */
struct pool_state {
    uint32_t correlation;
    uint64_t time_ns, used_bytes, pool_bytes;
};

struct session {
    pthread_mutex_t life; /* of users and entries; taken before the other */
    int users;
    struct entries entries;
    pthread_mutex_t lock; /* of what follows */
    struct link *links;
    int64_t link_count, link_capacity;
    struct activity *activities;
    int64_t activity_count, activity_capacity;
    struct pool_state *pools;
    int64_t pool_count, pool_capacity;
    int64_t dropped; /* records, and what memory was short for */
};

static struct session session = {PTHREAD_MUTEX_INITIALIZER, 0, {}, PTHREAD_MUTEX_INITIALIZER, NULL,
    0, 0, NULL, 0, 0, NULL, 0, 0, 0};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))
/* Without these a trace has no curve of the pool, and all else. */
#define MEMORY_KIND CUPTI_ACTIVITY_KIND_MEMORY2

/* ---- what CUPTI hands over --------------------------------------------------------------------
 */

static uint64_t now_ns(void)
{
    return (uint64_t)(timing_now_s() * 1e9);
}

static void give_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *buffer = (uint8_t *)aligned_alloc(BUFFER_ALIGNMENT, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0; /* as many as fit */
}

/* Makes room for one more; false, and one more dropped, when memory is short. */
static bool make_room(void **array, int64_t count, int64_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return true;
    int64_t larger = *capacity ? 2 * *capacity : 4096;
    void *moved = realloc(*array, (size_t)larger * element_bytes);
    if (!moved) {
        session.dropped++;
        return false;
    }
    *array = moved;
    *capacity = larger;
    return true;
}

static void add_link(uint32_t correlation, uint64_t id)
{
    if (make_room((void **)&session.links, session.link_count, &session.link_capacity,
            sizeof *session.links))
        session.links[session.link_count++] = {correlation, id};
}

static void add_activity(uint32_t correlation, uint64_t begin_ns, uint64_t end_ns)
{
    if (!begin_ns || end_ns < begin_ns) /* CUPTI could not tell */
        session.dropped++;
    else if (make_room((void **)&session.activities, session.activity_count,
                 &session.activity_capacity, sizeof *session.activities))
        session.activities[session.activity_count++] = {correlation, begin_ns, end_ns};
}

/* Of blocks that come from a pool in stream order; others have no pool to tell of. */
static void add_pool(const CUpti_ActivityMemory3 *memory)
{
    if (memory->isAsync && make_room((void **)&session.pools, session.pool_count,
                               &session.pool_capacity, sizeof *session.pools))
        session.pools[session.pool_count++] = {memory->correlationId, memory->timestamp,
            memory->memoryPoolConfig.utilizedSize, memory->memoryPoolConfig.pool.size};
}

static void add_record(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *kernel = (const CUpti_ActivityKernel9 *)record;
        add_activity(kernel->correlationId, kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *copy = (const CUpti_ActivityMemcpy5 *)record;
        add_activity(copy->correlationId, copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const CUpti_ActivityMemcpyPtoP4 *copy = (const CUpti_ActivityMemcpyPtoP4 *)record;
        add_activity(copy->correlationId, copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *fill = (const CUpti_ActivityMemset4 *)record;
        add_activity(fill->correlationId, fill->start, fill->end);
        break;
    }
    case MEMORY_KIND:
        add_pool((const CUpti_ActivityMemory3 *)record);
        break;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const CUpti_ActivityExternalCorrelation *join =
            (const CUpti_ActivityExternalCorrelation *)record;
        if (join->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
            add_link(join->correlationId, join->externalId);
        break;
    }
    default:
        break;
    }
}

static void take_buffer(
    CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)bytes;
    pthread_mutex_lock(&session.lock);
    while (session.entries.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        add_record(record);
    if (session.entries.dropped(context, stream, &dropped) == CUPTI_SUCCESS)
        session.dropped += (int64_t)dropped;
    pthread_mutex_unlock(&session.lock);
    free(buffer);
}

/* ---- the session ------------------------------------------------------------------------------
 */

#ifdef CUDA_EMULATOR

/* The emulator's CUPTI is linked in. */
static bool load(struct entries *e)
{
    *e = {NULL, cuptiActivityEnable, cuptiActivityDisable, cuptiActivityRegisterCallbacks,
        cuptiActivityRegisterTimestampCallback, cuptiActivityFlushAll, cuptiActivityGetNextRecord,
        cuptiActivityGetNumDroppedRecords, cuptiActivityPushExternalCorrelationId,
        cuptiActivityPopExternalCorrelationId};
    return true;
}

#else

template <typename T> static bool find(void *library, const char *name, T *entry)
{
    *entry = (T)dlsym(library, name);
    return *entry != NULL;
}

static bool load(struct entries *e)
{
    static const char *const names[] = {"libcupti.so", "libcupti.so.13", "libcupti.so.12",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
    for (int i = 0; i < 4 && !e->library; i++)
        e->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return e->library && find(e->library, "cuptiActivityEnable", &e->enable) &&
           find(e->library, "cuptiActivityDisable", &e->disable) &&
           find(e->library, "cuptiActivityRegisterCallbacks", &e->register_callbacks) &&
           find(e->library, "cuptiActivityRegisterTimestampCallback", &e->register_timestamp) &&
           find(e->library, "cuptiActivityFlushAll", &e->flush_all) &&
           find(e->library, "cuptiActivityGetNextRecord", &e->next_record) &&
           find(e->library, "cuptiActivityGetNumDroppedRecords", &e->dropped) &&
           find(e->library, "cuptiActivityPushExternalCorrelationId", &e->push) &&
           find(e->library, "cuptiActivityPopExternalCorrelationId", &e->pop);
}

#endif

/* False when another profiler has CUPTI, or it does not know the machine. */
static bool start(const struct entries *e)
{
    int enabled = 0;
    if (e->register_timestamp(now_ns) != CUPTI_SUCCESS ||
        e->register_callbacks(give_buffer, take_buffer) != CUPTI_SUCCESS)
        return false;
    while (enabled < KINDS && e->enable(kinds[enabled]) == CUPTI_SUCCESS)
        enabled++;
    if (enabled == KINDS) {
        e->enable(MEMORY_KIND);
        return true;
    }
    while (enabled > 0)
        e->disable(kinds[--enabled]);
    return false;
}

bool cupti_open(void)
{
    pthread_mutex_lock(&session.life);
    bool sound = session.users || (load(&session.entries) && start(&session.entries));
    session.users += sound;
    pthread_mutex_unlock(&session.life);
    return sound;
}

static void forget_all(void)
{
    pthread_mutex_lock(&session.lock);
    free(session.links);
    free(session.activities);
    free(session.pools);
    session.links = NULL;
    session.activities = NULL;
    session.pools = NULL;
    session.pool_count = session.pool_capacity = 0;
    session.link_count = session.link_capacity = 0;
    session.activity_count = session.activity_capacity = 0;
    session.dropped = 0;
    pthread_mutex_unlock(&session.lock);
}

void cupti_close(void)
{
    pthread_mutex_lock(&session.life);
    if (!--session.users) {
        for (int i = 0; i < KINDS; i++)
            session.entries.disable(kinds[i]);
        session.entries.disable(MEMORY_KIND);
        session.entries.flush_all(0);
        forget_all();
    }
    pthread_mutex_unlock(&session.life);
}

void cupti_push(uint64_t id)
{
    session.entries.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id);
}

void cupti_pop(void)
{
    uint64_t id;
    session.entries.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id);
}

/* ---- handing out ------------------------------------------------------------------------------
 */

static int by_correlation(const void *a, const void *b)
{
    const struct link *left = (const struct link *)a, *right = (const struct link *)b;
    return (left->correlation > right->correlation) - (left->correlation < right->correlation);
}

/* qsort and bsearch take no null pointer, which a list of nothing is. */
static void sort(void *list, int64_t count, size_t size, int (*compare)(const void *, const void *))
{
    if (count > 1)
        qsort(list, (size_t)count, size, compare);
}

static const struct link *find_link(uint32_t correlation)
{
    struct link wanted = {correlation, 0};
    if (!session.link_count)
        return NULL;
    return (const struct link *)bsearch(
        &wanted, session.links, (size_t)session.link_count, sizeof wanted, by_correlation);
}

int64_t cupti_take(uint64_t first, uint64_t last,
    void (*take)(void *context, uint64_t id, double begin_s, double end_s), void *context)
{
    session.entries.flush_all(0);
    pthread_mutex_lock(&session.lock);
    int64_t kept = 0, dropped = session.dropped;
    session.dropped = 0;
    sort(session.links, session.link_count, sizeof *session.links, by_correlation);
    for (int64_t i = 0; i < session.activity_count; i++) {
        struct activity activity = session.activities[i];
        const struct link *link = find_link(activity.correlation);
        if (link && link->id >= first && link->id <= last)
            take(context, link->id, 1e-9 * (double)activity.begin_ns,
                1e-9 * (double)activity.end_ns);
        else
            session.activities[kept++] = activity;
    }
    session.activity_count = kept;
    pthread_mutex_unlock(&session.lock);
    return dropped;
}

static int by_time(const void *a, const void *b)
{
    const struct pool_state *left = (const struct pool_state *)a;
    const struct pool_state *right = (const struct pool_state *)b;
    if (left->time_ns != right->time_ns)
        return left->time_ns < right->time_ns ? -1 : 1;
    return (left->correlation > right->correlation) - (left->correlation < right->correlation);
}

void cupti_take_memory(uint64_t id,
    void (*take)(void *context, double time_s, int64_t used_bytes, int64_t pool_bytes),
    void *context)
{
    session.entries.flush_all(0);
    pthread_mutex_lock(&session.lock);
    int64_t kept = 0;
    sort(session.links, session.link_count, sizeof *session.links, by_correlation);
    sort(session.pools, session.pool_count, sizeof *session.pools, by_time);
    for (int64_t i = 0; i < session.pool_count; i++) {
        struct pool_state state = session.pools[i];
        const struct link *link = find_link(state.correlation);
        if (link && link->id == id)
            take(context, 1e-9 * (double)state.time_ns, (int64_t)state.used_bytes,
                (int64_t)state.pool_bytes);
        else
            session.pools[kept++] = state;
    }
    session.pool_count = kept;
    pthread_mutex_unlock(&session.lock);
}
#endif
