/* Memory and its faults: sizes, ECC, row remapping, repairs. */
#include <stdio.h>
#include <string.h>

#include "call.h"

#define END {NULL, NULL, NULL}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    return get_all(device, __func__,
                   (struct want[]){{"memory.total", NULL, &out->total},
                                   {"memory.free", NULL, &out->free},
                                   {"memory.used", NULL, &out->used}, END});
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    if (out->version != STRUCT_VERSION(nvmlMemory_v2_t, 2u))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return get_all(device, __func__,
                   (struct want[]){{"memory.total", NULL, &out->total},
                                   {"memory.reserved", NULL, &out->reserved},
                                   {"memory.free", NULL, &out->free},
                                   {"memory.used", NULL, &out->used}, END});
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    return get_all(device, __func__,
                   (struct want[]){{"bar1.total", NULL, &out->total},
                                   {"bar1.free", NULL, &out->free},
                                   {"bar1.used", NULL, &out->used}, END});
}

/* ---- ECC ---- */

static const char *const ERRORS[] = {"corrected", "uncorrected"};
static const char *const COUNTERS[] = {"volatile", "aggregate"};

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                  unsigned long long *out) {
    char key[KEY_MAX];
    if (error > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "ecc.total.%s.%s", ERRORS[error], COUNTERS[counter]);
    return get_ulonglong(device, __func__, key, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                      unsigned int location, unsigned long long *out) {
    char key[KEY_MAX];
    if (error > 1 || counter > 1 || location > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "ecc.location.%s.%s.%u", ERRORS[error], COUNTERS[counter], location);
    return get_ulonglong(device, __func__, key, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out) {
    if (out->version != STRUCT_VERSION(nvmlEccSramErrorStatus_t, 1u))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return get_all(device, __func__,
                   (struct want[]){{"sram.aggregate.uncorrected_parity", NULL, &out->aggregate_uncorrected_parity},
                                   {"sram.aggregate.uncorrected_secded", NULL, &out->aggregate_uncorrected_secded},
                                   {"sram.aggregate.corrected", NULL, &out->aggregate_corrected},
                                   {"sram.volatile.uncorrected_parity", NULL, &out->volatile_uncorrected_parity},
                                   {"sram.volatile.uncorrected_secded", NULL, &out->volatile_uncorrected_secded},
                                   {"sram.volatile.corrected", NULL, &out->volatile_corrected},
                                   {"sram.bucket.l2", NULL, &out->bucket_l2},
                                   {"sram.bucket.sm", NULL, &out->bucket_sm},
                                   {"sram.bucket.pcie", NULL, &out->bucket_pcie},
                                   {"sram.bucket.mcu", NULL, &out->bucket_mcu},
                                   {"sram.bucket.other", NULL, &out->bucket_other},
                                   {"sram.threshold_exceeded", &out->threshold_exceeded, NULL}, END});
}

/* ---- rows, pages, repairs ---- */

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                                unsigned int *pending, unsigned int *failure) {
    return get_all(device, __func__,
                   (struct want[]){{"remapped.corrected", corrected, NULL},
                                   {"remapped.uncorrected", uncorrected, NULL},
                                   {"remapped.pending", pending, NULL},
                                   {"remapped.failure", failure, NULL}, END});
}

NVML_API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out) {
    return get_all(device, __func__,
                   (struct want[]){{"remapped.banks.max", &out->max, NULL},
                                   {"remapped.banks.high", &out->high, NULL},
                                   {"remapped.banks.partial", &out->partial, NULL},
                                   {"remapped.banks.low", &out->low, NULL},
                                   {"remapped.banks.none", &out->none, NULL}, END});
}

NVML_API nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *out) {
    if (out->version != STRUCT_VERSION(nvmlRepairStatus_t, 1u))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return get_all(device, __func__,
                   (struct want[]){{"repair.channel_pending", &out->channel_pending, NULL},
                                   {"repair.tpc_pending", &out->tpc_pending, NULL}, END});
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *out) {
    return get_uint(device, __func__, "retired.pending", out);
}

/* Addresses do not matter to anybody here: page i is i. */
static nvmlReturn_t retired(nvmlDevice_t device, const char *name, unsigned int *count, unsigned long long *pages) {
    unsigned int room = pages ? *count : 0;
    nvmlReturn_t code = get_uint(device, name, "retired.count", count);
    for (unsigned int i = 0; code == NVML_SUCCESS && i < *count && i < room; i++)
        pages[i] = i;
    return code == NVML_SUCCESS && *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : code;
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                                unsigned long long *pages) {
    (void)cause;
    return retired(device, __func__, count, pages);
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                                   unsigned long long *pages, unsigned long long *times) {
    (void)cause;
    nvmlReturn_t code = retired(device, __func__, count, pages);
    if (code == NVML_SUCCESS && times)
        memset(times, 0, *count * sizeof *times);
    return code;
}
