/* What the simulated library shares with programs that use NVML: return codes and the structures that cross the border.
 * Layouts follow NVIDIA's public header as nvidia-ml-py 13 declares them; only what the library fills is here. */
#ifndef NVML_H
#define NVML_H

#include <stdint.h>

typedef unsigned int nvmlReturn_t;
typedef struct device *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

/* A structure's version word: its size below, the number of its version in the top byte. */
#define STRUCT_VERSION(type, number) ((unsigned int)sizeof(type) | (number) << 24)

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device;
    unsigned int device_id, subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned long long total, free, used; } nvmlBAR1Memory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long reference_time, violation_time; } nvmlViolationTime_t;
typedef struct { unsigned int version, sensor; int temperature; } nvmlTemperature_t;
typedef struct { unsigned int version; int margin; } nvmlMarginTemperature_t;
typedef struct { unsigned int max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;
typedef struct { unsigned int version, channel_pending, tpc_pending; } nvmlRepairStatus_t;

typedef struct {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int version;
    unsigned long long aggregate_uncorrected_parity, aggregate_uncorrected_secded, aggregate_corrected;
    unsigned long long volatile_uncorrected_parity, volatile_uncorrected_secded, volatile_corrected;
    unsigned long long bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned int threshold_exceeded;
} nvmlEccSramErrorStatus_t;

typedef struct {
    unsigned char cluster_uuid[16];
    nvmlReturn_t status;
    unsigned int clique;
    unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned int version;
    unsigned char cluster_uuid[16];
    nvmlReturn_t status;
    unsigned int clique;
    unsigned char state;
    unsigned int health_mask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned int version;
    unsigned char cluster_uuid[16];
    nvmlReturn_t status;
    unsigned int clique;
    unsigned char state;
    unsigned int health_mask;
    unsigned char health_summary;
} nvmlGpuFabricInfo_v3_t;

enum { TYPE_DOUBLE, TYPE_UINT, TYPE_ULONG, TYPE_ULONGLONG, TYPE_LONGLONG, TYPE_INT, TYPE_USHORT };

typedef struct {
    unsigned int field_id, scope_id;
    long long timestamp, latency_us;
    unsigned int type;
    nvmlReturn_t code;
    union {
        double d;
        unsigned int u;
        int i;
        unsigned long long bits;
    } value;
} nvmlFieldValue_t;

#endif
