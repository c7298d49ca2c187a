/* The library itself, the system, and how a program finds its GPUs. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "call.h"
#include "codes.h"

NVML_API nvmlReturn_t nvmlInit_v2(void) { return library_start(__func__); }

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return library_start(__func__);
}

NVML_API nvmlReturn_t nvmlShutdown(void) { return library_stop(); }

NVML_API const char *nvmlErrorString(nvmlReturn_t code) { return code_text(code); }

static nvmlReturn_t system_text(const char *name, const char *key, char *out, unsigned int room) {
    nvmlReturn_t code = call_enter();
    if (code != NVML_SUCCESS)
        return code;
    code = call_charge(NO_SLOT, name);
    if (code == NVML_SUCCESS)
        code = reading_text(NO_SLOT, key, out, room);
    call_leave();
    return code;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int room) {
    return system_text(__func__, "system.driver_version", out, room);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int room) {
    return system_text(__func__, "system.nvml_version", out, room);
}

static nvmlReturn_t cuda_version(const char *name, int *out) {
    char text[32];
    nvmlReturn_t code = system_text(name, "system.cuda_version", text, sizeof text);
    if (code == NVML_SUCCESS)
        *out = atoi(text);
    return code;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(__func__, out); }
NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(__func__, out); }

/* ---- finding GPUs ---- */

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t code = call_enter();
    if (code != NVML_SUCCESS)
        return code;
    code = call_charge(NO_SLOT, __func__);
    int slots[SLOTS_MAX];
    if (code == NVML_SUCCESS)
        *count = (unsigned int)state_slots(slots);
    call_leave();
    return code;
}

static nvmlReturn_t hand_out(int slot, const char *name, nvmlDevice_t *device) {
    nvmlReturn_t code = call_charge(slot, name);
    if (code == NVML_SUCCESS)
        *device = device_of_slot(slot);
    return code;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t code = call_enter();
    if (code != NVML_SUCCESS)
        return code;
    int slots[SLOTS_MAX];
    unsigned int count = (unsigned int)state_slots(slots);
    code = index < count ? hand_out(slots[index], __func__, device) : NVML_ERROR_INVALID_ARGUMENT;
    call_leave();
    return code;
}

/* Bus ids are compared as programs write them: any case, with a domain of four or eight digits. */
static bool same_name(const char *seen, const char *wanted) {
    if (strcasecmp(seen, wanted) == 0)
        return true;
    return strncmp(seen, "0000", 4) == 0 && strcasecmp(seen + 4, wanted) == 0;
}

static nvmlReturn_t handle_by(const char *name, const char *key, const char *wanted, nvmlDevice_t *device) {
    nvmlReturn_t code = call_enter();
    if (code != NVML_SUCCESS)
        return code;
    int slots[SLOTS_MAX];
    int count = state_slots(slots);
    code = NVML_ERROR_NOT_FOUND;
    for (int i = 0; i < count && code == NVML_ERROR_NOT_FOUND; i++) {
        char text[TEXT_MAX];
        if (reading_text(slots[i], key, text, sizeof text) == NVML_SUCCESS && same_name(text, wanted))
            code = hand_out(slots[i], name, device);
    }
    call_leave();
    return code;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return handle_by(__func__, "uuid", uuid, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return handle_by(__func__, "serial", serial, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    return handle_by(__func__, "pci.bus_id", bus_id, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    int slot, slots[SLOTS_MAX];
    nvmlReturn_t code = device_enter(device, __func__, &slot);
    if (code != NVML_SUCCESS)
        return code;
    int count = state_slots(slots);
    code = NVML_ERROR_NOT_FOUND;
    for (int i = 0; i < count; i++)
        if (slots[i] == slot) {
            *index = (unsigned int)i;
            code = NVML_SUCCESS;
        }
    call_leave();
    return code;
}
