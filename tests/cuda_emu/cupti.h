/* The part of CUPTI that device/cupti.cu calls (tests/cuda_emu/cupti.cpp): activity records of
 * kernels, copies, fills and of the memory of pools, and the correlation of calls. */
#pragma once
#include "tests/cuda_emu/cuda_runtime.h"

typedef struct emulated_context *CUcontext;

typedef enum {
    CUPTI_SUCCESS = 0,
    CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
    CUPTI_ERROR_QUEUE_EMPTY = 19,
    CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
} CUptiResult;

typedef enum {
    CUPTI_ACTIVITY_KIND_MEMCPY = 1,
    CUPTI_ACTIVITY_KIND_MEMSET = 2,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_ACTIVITY_KIND_MEMCPY2 = 22,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39,
    CUPTI_ACTIVITY_KIND_MEMORY2 = 49
} CUpti_ActivityKind;

typedef enum { CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 = 3 } CUpti_ExternalCorrelationKind;

typedef enum {
    CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION = 1,
    CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE = 2
} CUpti_ActivityMemoryOperationType;

typedef struct {
    CUpti_ActivityKind kind;
} CUpti_Activity;

/* Kernels, copies and fills have the same members here. */
typedef struct {
    CUpti_ActivityKind kind;
    uint32_t correlationId;
    uint64_t start, end;
} CUpti_ActivityKernel9;
typedef CUpti_ActivityKernel9 CUpti_ActivityMemcpy5, CUpti_ActivityMemcpyPtoP4,
    CUpti_ActivityMemset4;

typedef struct {
    CUpti_ActivityKind kind;
    CUpti_ExternalCorrelationKind externalKind;
    uint64_t externalId;
    uint32_t correlationId;
} CUpti_ActivityExternalCorrelation;

typedef struct {
    CUpti_ActivityKind kind;
    CUpti_ActivityMemoryOperationType memoryOperationType;
    uint32_t correlationId;
    uint64_t address, bytes, timestamp;
    uint32_t deviceId, isAsync;
    struct {
        struct {
            uint64_t size;
        } pool;
        uint64_t utilizedSize;
    } memoryPoolConfig;
} CUpti_ActivityMemory3;

typedef void (*CUpti_BuffersCallbackRequestFunc)(
    uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(
    CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes);
typedef uint64_t (*CUpti_TimestampCallbackFunc)(void);

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityRegisterCallbacks(
    CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp);
CUptiResult cuptiActivityFlushAll(uint32_t flags);
CUptiResult cuptiActivityGetNextRecord(
    uint8_t *buffer, size_t valid_bytes, CUpti_Activity **record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped);
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id);
CUptiResult cuptiActivityPopExternalCorrelationId(
    CUpti_ExternalCorrelationKind kind, uint64_t *last);
