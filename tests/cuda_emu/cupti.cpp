/* Activity records of what the emulator does. A call that enqueues work gets a correlation number at
 * once; what it enqueued is timed when its stream comes to it. CUDA_EMU_CUPTI: `busy`, another
 * profiler holds CUPTI; `drops`, every seventh record of a kernel, copy or fill is lost. */
#include "tests/cuda_emu/cupti.h"
#include <set>
#include <vector>
#include "tests/cuda_emu/memory.h"

enum { DROPS_EVERY = 7 };

/* Every record in a buffer takes as much. */
union record {
    CUpti_Activity any;
    CUpti_ActivityKernel9 ran;
    CUpti_ActivityExternalCorrelation external;
    CUpti_ActivityMemory3 memory;
};

/* Guarded by the lock, but for the callbacks, which are set before anything runs. */
static struct {
    std::set<CUpti_ActivityKind> enabled;
    std::vector<union record> records;
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    CUpti_TimestampCallbackFunc timestamp;
    uint32_t calls; /* so far */
    uint64_t ran;
    size_t dropped;
} session;

static thread_local std::vector<uint64_t> external_ids;

/* ---- what the emulator tells ------------------------------------------------------------------ */

static bool is_enabled(CUpti_ActivityKind kind)
{
    return session.enabled.count(kind) && session.timestamp;
}

/* The number of a call, joined to the id that its thread had pushed. */
static uint32_t note_call(void)
{
    const uint32_t call = ++session.calls;
    if (!external_ids.empty() && is_enabled(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
        union record record = {};
        record.external = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
            CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, external_ids.back(), call};
        session.records.push_back(record);
    }
    return call;
}

std::function<void()> recorded(enum recorded_work kind, std::function<void()> work)
{
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
    const CUpti_ActivityKind own = kinds[kind];
    if (!is_enabled(own))
        return work;
    const uint32_t call = note_call();
    return [=] {
        union record record = {};
        record.ran = {own, call, session.timestamp ? session.timestamp() : 0, 0};
        work();
        if (!is_enabled(own))
            return;
        record.ran.end = session.timestamp();
        if (emulator_settings()->cupti == CUPTI_DROPS && ++session.ran % DROPS_EVERY == 0)
            session.dropped++;
        else
            session.records.push_back(record);
    };
}

void note_memory(const void *address, size_t bytes, int device, bool taken, int64_t used_bytes,
    int64_t pool_bytes)
{
    if (!is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2))
        return;
    union record record = {};
    record.memory = {CUPTI_ACTIVITY_KIND_MEMORY2,
        taken ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
              : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE,
        note_call(), (uint64_t)(uintptr_t)address, bytes, session.timestamp(), (uint32_t)device, 1,
        {{(uint64_t)pool_bytes}, (uint64_t)used_bytes}};
    session.records.push_back(record);
}

/* ---- the calls -------------------------------------------------------------------------------- */

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    std::unique_lock<std::mutex> held(lock);
    if (emulator_settings()->cupti == CUPTI_BUSY)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    session.enabled.insert(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    std::unique_lock<std::mutex> held(lock);
    session.enabled.erase(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(
    CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete)
{
    std::unique_lock<std::mutex> held(lock);
    session.request = request;
    session.complete = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp)
{
    std::unique_lock<std::mutex> held(lock);
    session.timestamp = timestamp;
    return CUPTI_SUCCESS;
}

/* Hands the records over, a buffer full at a time. */
CUptiResult cuptiActivityFlushAll(uint32_t)
{
    std::vector<union record> records;
    {
        std::unique_lock<std::mutex> held(lock);
        records.swap(session.records);
        if (!session.request || !session.complete)
            return CUPTI_SUCCESS;
    }
    for (size_t at = 0; at < records.size();) {
        uint8_t *buffer = NULL;
        size_t bytes = 0, most = 0;
        session.request(&buffer, &bytes, &most);
        size_t count = bytes / sizeof records[0];
        if (most && count > most)
            count = most;
        if (count > records.size() - at)
            count = records.size() - at;
        if (!buffer || !count) {
            std::unique_lock<std::mutex> held(lock);
            session.dropped += records.size() - at;
            return CUPTI_SUCCESS;
        }
        memcpy(buffer, &records[at], count * sizeof records[0]);
        at += count;
        session.complete(NULL, 0, buffer, bytes, count * sizeof records[0]);
    }
    if (records.empty()) { /* what was dropped is told with a buffer */
        uint8_t *buffer = NULL;
        size_t bytes = 0, most = 0;
        session.request(&buffer, &bytes, &most);
        if (buffer)
            session.complete(NULL, 0, buffer, bytes, 0);
    }
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)(void *)*record + sizeof(union record) : buffer;
    if (next + sizeof(union record) > buffer + valid_bytes)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(void *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped)
{
    std::unique_lock<std::mutex> held(lock);
    *dropped = session.dropped;
    session.dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id)
{
    external_ids.push_back(id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t *last)
{
    if (external_ids.empty())
        return CUPTI_ERROR_QUEUE_EMPTY;
    *last = external_ids.back();
    external_ids.pop_back();
    return CUPTI_SUCCESS;
}
