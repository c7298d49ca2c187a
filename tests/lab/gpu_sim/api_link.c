/* NVLink, the NVSwitch fabric, and how GPUs reach each other. */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "pci.h"

#define END {NULL, NULL, NULL}

/* Enters a call for one link: an index at or beyond `links` is no argument. */
static nvmlReturn_t link_enter(nvmlDevice_t device, const char *name, unsigned int link, int *slot) {
    nvmlReturn_t code = device_enter(device, name, slot);
    if (code != NVML_SUCCESS)
        return code;
    uint64_t links = 0;
    reading_number(*slot, "links", &links);
    if (link < links)
        return NVML_SUCCESS;
    call_leave();
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t get_link(nvmlDevice_t device, const char *name, unsigned int link, const char *what,
                             uint64_t *out) {
    int slot;
    nvmlReturn_t code = link_enter(device, name, link, &slot);
    if (code != NVML_SUCCESS)
        return code;
    char key[KEY_MAX];
    snprintf(key, sizeof key, "link.%u.%s", link, what);
    code = reading_number(slot, key, out);
    call_leave();
    return code;
}

static nvmlReturn_t get_link_uint(nvmlDevice_t device, const char *name, unsigned int link, const char *what,
                                  unsigned int *out) {
    uint64_t number;
    nvmlReturn_t code = get_link(device, name, link, what, &number);
    if (code == NVML_SUCCESS)
        *out = (unsigned int)number;
    return code;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *out) {
    return get_link_uint(device, __func__, link, "state", out);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *out) {
    return get_link_uint(device, __func__, link, "version", out);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *out) {
    return get_link_uint(device, __func__, link, "remote.type", out);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability,
                                                    unsigned int *out) {
    char what[32];
    if (capability > 5)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(what, sizeof what, "capability.%u", capability);
    return get_link_uint(device, __func__, link, what, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                      unsigned long long *out) {
    static const char *const COUNTERS[] = {"replay", "recovery", "crc", "crc_data", "ecc_data"};
    if (counter >= sizeof COUNTERS / sizeof *COUNTERS)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t number;
    nvmlReturn_t code = get_link(device, __func__, link, COUNTERS[counter], &number);
    if (code == NVML_SUCCESS)
        *out = number;
    return code;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    int slot;
    nvmlReturn_t code = link_enter(device, __func__, link, &slot);
    if (code != NVML_SUCCESS)
        return code;
    char key[KEY_MAX], bus_id[32];
    memset(pci, 0, sizeof *pci);
    snprintf(key, sizeof key, "link.%u.remote.bus_id", link);
    code = reading_text(slot, key, bus_id, sizeof bus_id);
    if (code == NVML_SUCCESS && !parse_bus_id(bus_id, pci))
        code = NVML_ERROR_UNKNOWN;
    snprintf(key, sizeof key, "link.%u.remote.device_id", link);
    if (code == NVML_SUCCESS)
        code = read_all(slot, (struct want[]){{key, &pci->device_id, NULL}, END});
    call_leave();
    return code;
}

/* ---- fabric ---- */

static int hex_digit(char c) {
    const char *at = c ? strchr("0123456789abcdef", c) : NULL;
    return at ? (int)(at - "0123456789abcdef") : -1;
}

struct fabric {
    unsigned int state, status, clique, health_mask, health_summary;
    unsigned char cluster_uuid[16];
};

static nvmlReturn_t read_fabric(int slot, struct fabric *out) {
    char uuid[33];
    memset(out, 0, sizeof *out);
    nvmlReturn_t code = read_all(slot, (struct want[]){{"fabric.state", &out->state, NULL},
                                                       {"fabric.status", &out->status, NULL},
                                                       {"fabric.clique", &out->clique, NULL},
                                                       {"fabric.health_mask", &out->health_mask, NULL},
                                                       {"fabric.health_summary", &out->health_summary, NULL}, END});
    if (code == NVML_SUCCESS)
        code = reading_text(slot, "fabric.cluster_uuid", uuid, sizeof uuid);
    for (int i = 0; code == NVML_SUCCESS && i < 16; i++) {
        int high = hex_digit(uuid[2 * i]), low = high < 0 ? -1 : hex_digit(uuid[2 * i + 1]);
        if (low < 0)
            return NVML_ERROR_UNKNOWN;
        out->cluster_uuid[i] = (unsigned char)(high << 4 | low);
    }
    return code;
}

static nvmlReturn_t get_fabric(nvmlDevice_t device, const char *name, struct fabric *out) {
    int slot;
    nvmlReturn_t code = device_enter(device, name, &slot);
    if (code != NVML_SUCCESS)
        return code;
    code = read_fabric(slot, out);
    call_leave();
    return code;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out) {
    struct fabric seen;
    nvmlReturn_t code = get_fabric(device, __func__, &seen);
    if (code != NVML_SUCCESS)
        return code;
    memcpy(out->cluster_uuid, seen.cluster_uuid, 16);
    out->status = seen.status;
    out->clique = seen.clique;
    out->state = (unsigned char)seen.state;
    return code;
}

/* Version 3 is version 2 with one byte more, so both are filled through the larger one. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *out) {
    struct fabric seen;
    nvmlReturn_t code = get_fabric(device, __func__, &seen);
    bool third = out->version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3u);
    if (code == NVML_SUCCESS && !third && out->version != STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2u))
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (code != NVML_SUCCESS)
        return code;
    memcpy(out->cluster_uuid, seen.cluster_uuid, 16);
    out->status = seen.status;
    out->clique = seen.clique;
    out->state = (unsigned char)seen.state;
    out->health_mask = seen.health_mask;
    if (third)
        out->health_summary = (unsigned char)seen.health_summary;
    return code;
}

/* ---- pairs ---- */

static nvmlReturn_t get_pair(nvmlDevice_t device, const char *name, nvmlDevice_t other, const char *format,
                             unsigned int index, unsigned int *out) {
    char key[KEY_MAX];
    int slot = slot_of_device(other);
    if (slot == NO_SLOT)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, format, slot, index);
    return get_uint(device, name, key, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned int index,
                                             unsigned int *out) {
    return get_pair(device, __func__, other, "p2p.%d.%u", index, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned int *out) {
    return get_pair(device, __func__, other, "topology.%d", 0, out);
}
