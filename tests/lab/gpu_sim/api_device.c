/* What one GPU is and how it does: identity, PCIe, modes, clocks, power, temperature, processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "pci.h"

#define TEXT(name, key)                                                                                                \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, char *out, unsigned int room) {                                    \
        return get_text(device, __func__, key, out, room);                                                             \
    }
#define UINT(name, key)                                                                                                \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *out) { return get_uint(device, __func__, key, out); }
#define ULONGLONG(name, key)                                                                                           \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned long long *out) {                                         \
        return get_ulonglong(device, __func__, key, out);                                                              \
    }
#define TWO(name, key_a, key_b)                                                                                        \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *a, unsigned int *b) {                                \
        return get_all(device, __func__, (struct want[]){{key_a, a, NULL}, {key_b, b, NULL}, {NULL, NULL, NULL}});     \
    }

/* ---- identity ---- */

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios_version")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom.image")
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetBoardId, "board_id")
UINT(nvmlDeviceGetModuleId, "module_id")
UINT(nvmlDeviceGetNumaNodeId, "numa_node")
UINT(nvmlDeviceGetMultiGpuBoard, "multi_gpu_board")
UINT(nvmlDeviceGetNumGpuCores, "cores")
UINT(nvmlDeviceGetBrand, "brand")
UINT(nvmlDeviceGetArchitecture, "architecture")
UINT(nvmlDeviceGetInforomConfigurationChecksum, "inforom.checksum")
TWO(nvmlDeviceGetCudaComputeCapability, "compute_capability.major", "compute_capability.minor")
TWO(nvmlDeviceGetGspFirmwareMode, "gsp.enabled", "gsp.default")

NVML_API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char out[64]) {
    return get_text(device, __func__, "gsp.version", out, 64);
}

NVML_API nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned int object, char *out,
                                                  unsigned int room) {
    static const char *const KEYS[] = {"inforom.oem", "inforom.ecc", "inforom.power", "inforom.den"};
    return object < 4 ? get_text(device, __func__, KEYS[object], out, room) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device) {
    return get_all(device, __func__, (struct want[]){{"inforom.valid", NULL, NULL}, {NULL, NULL, NULL}});
}

/* ---- PCIe ---- */

bool parse_bus_id(const char *text, nvmlPciInfo_t *pci) {
    unsigned int function;
    if (sscanf(text, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) != 4)
        return false;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, function);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff, function & 0xf);
    return true;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    int slot;
    nvmlReturn_t code = device_enter(device, __func__, &slot);
    if (code != NVML_SUCCESS)
        return code;
    char bus_id[32];
    memset(pci, 0, sizeof *pci);
    code = reading_text(slot, "pci.bus_id", bus_id, sizeof bus_id);
    if (code == NVML_SUCCESS && !parse_bus_id(bus_id, pci))
        code = NVML_ERROR_UNKNOWN;
    if (code == NVML_SUCCESS)
        code = read_all(slot, (struct want[]){{"pci.device_id", &pci->device_id, NULL},
                                              {"pci.subsystem_id", &pci->subsystem_id, NULL},
                                              {NULL, NULL, NULL}});
    call_leave();
    return code;
}

UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max")
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.gen_gpu_max")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie.replay")

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int direction, unsigned int *out) {
    if (direction > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    return get_uint(device, __func__, direction == 0 ? "pcie.tx_kbps" : "pcie.rx_kbps", out);
}

/* ---- modes ---- */

UINT(nvmlDeviceGetPersistenceMode, "persistence_mode")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetDefaultEccMode, "ecc.default")
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig.max_devices")
TWO(nvmlDeviceGetEccMode, "ecc.mode", "ecc.pending")
TWO(nvmlDeviceGetMigMode, "mig.mode", "mig.pending")

/* ---- load ---- */

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    return get_all(device, __func__, (struct want[]){{"utilization.gpu", &out->gpu, NULL},
                                                     {"utilization.memory", &out->memory, NULL},
                                                     {NULL, NULL, NULL}});
}

/* Fills `out` from "pid:bytes pid:bytes" and returns how many there are, also beyond `room`. */
static unsigned int parse_processes(const char *text, nvmlProcessInfo_t *out, unsigned int room) {
    unsigned int count = 0, pid;
    unsigned long long bytes;
    for (int used; sscanf(text, " %u:%llu%n", &pid, &bytes, &used) == 2; text += used, count++)
        if (count < room)
            out[count] = (nvmlProcessInfo_t){pid, bytes, 0xffffffff, 0xffffffff};
    return count;
}

static nvmlReturn_t processes(nvmlDevice_t device, const char *name, const char *key, unsigned int *count,
                              nvmlProcessInfo_t *out) {
    char text[TEXT_MAX];
    unsigned int room = out ? *count : 0;
    nvmlReturn_t code = get_text(device, name, key, text, sizeof text);
    if (code != NVML_SUCCESS)
        return code;
    *count = parse_processes(text, out, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_t *out) {
    return processes(device, __func__, "processes", count, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_t *out) {
    return processes(device, __func__, "graphics_processes", count, out);
}

/* ---- power and energy ---- */

UINT(nvmlDeviceGetPowerUsage, "power.usage")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power.enforced_limit")
UINT(nvmlDeviceGetPowerManagementLimit, "power.limit")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_limit")
TWO(nvmlDeviceGetPowerManagementLimitConstraints, "power.min_limit", "power.max_limit")
ULONGLONG(nvmlDeviceGetTotalEnergyConsumption, "energy")

/* ---- clocks ---- */

ULONGLONG(nvmlDeviceGetCurrentClocksEventReasons, "clocks.reasons")
ULONGLONG(nvmlDeviceGetCurrentClocksThrottleReasons, "clocks.reasons")
ULONGLONG(nvmlDeviceGetSupportedClocksEventReasons, "clocks.reasons_supported")
ULONGLONG(nvmlDeviceGetSupportedClocksThrottleReasons, "clocks.reasons_supported")

static nvmlReturn_t clock_of(nvmlDevice_t device, const char *name, const char *kind, unsigned int clock,
                             unsigned int *out) {
    static const char *const CLOCKS[] = {"graphics", "sm", "memory", "video"};
    char key[KEY_MAX];
    if (clock >= 4)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "clocks.%s.%s", kind, CLOCKS[clock]);
    return get_uint(device, name, key, out);
}

#define CLOCK(name, kind)                                                                                              \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int clock, unsigned int *out) {                           \
        return clock_of(device, __func__, kind, clock, out);                                                           \
    }
CLOCK(nvmlDeviceGetClockInfo, "current")
CLOCK(nvmlDeviceGetMaxClockInfo, "max")
CLOCK(nvmlDeviceGetApplicationsClock, "application")
CLOCK(nvmlDeviceGetDefaultApplicationsClock, "default_application")

NVML_API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy, nvmlViolationTime_t *out) {
    struct timespec now;
    char key[KEY_MAX];
    timespec_get(&now, TIME_UTC);
    out->reference_time = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    snprintf(key, sizeof key, "violation.%u", policy);
    return get_ulonglong(device, __func__, key, &out->violation_time);
}

/* ---- temperature ---- */

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *out) {
    return sensor == 0 ? get_uint(device, __func__, "temperature.gpu", out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out) {
    if (out->version != STRUCT_VERSION(nvmlTemperature_t, 1u))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return get_uint(device, __func__, "temperature.gpu", (unsigned int *)&out->temperature);
}

NVML_API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out) {
    if (out->version != STRUCT_VERSION(nvmlMarginTemperature_t, 1u))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return get_uint(device, __func__, "temperature.margin", (unsigned int *)&out->margin);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int type, unsigned int *out) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "temperature.threshold.%u", type);
    return get_uint(device, __func__, key, out);
}
