/* nvmlDeviceGetFieldValues: a batch that succeeds as a call while each item has a return code of its own. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "call.h"

static long long now_us(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static nvmlReturn_t read_value(int slot, const char *key, nvmlFieldValue_t *item) {
    if (item->type == TYPE_DOUBLE)
        return reading_double(slot, key, &item->value.d);
    uint64_t number = 0;
    nvmlReturn_t code = reading_link_number(slot, key, item->scope_id, &number);
    if (code == NVML_SUCCESS) {
        bool narrow = item->type == TYPE_UINT || item->type == TYPE_INT;
        item->value.bits = narrow ? number & 0xffffffff : number;
    }
    return code;
}

/* Whether a field is a reference to a link that this GPU does not have. */
static bool beyond_last_link(int slot, const char *raw, unsigned int link) {
    uint64_t links = 0;
    reading_number(slot, "links", &links);
    return *raw == '@' && strchr(raw, '#') && link >= links;
}

static void read_item(int slot, nvmlFieldValue_t *item) {
    char key[KEY_MAX];
    uint64_t type = 0;
    item->timestamp = now_us();
    item->value.bits = 0;
    snprintf(key, sizeof key, "field.%u.type", item->field_id);
    reading_number(slot, key, &type);
    item->type = (unsigned int)type;
    snprintf(key, sizeof key, "field.%u", item->field_id);
    const char *raw = reading_raw(slot, key);
    if (!raw || beyond_last_link(slot, raw, item->scope_id))
        item->code = NVML_ERROR_INVALID_ARGUMENT;
    else
        item->code = read_value(slot, key, item);
    item->latency_us = now_us() - item->timestamp;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *items) {
    int slot;
    nvmlReturn_t code = device_enter(device, __func__, &slot);
    if (code != NVML_SUCCESS)
        return code;
    for (int i = 0; i < count; i++) {
        char key[KEY_MAX];
        snprintf(key, sizeof key, "call.%s.field.%u.cost_us", __func__, items[i].field_id);
        call_cost(slot, key);
        read_item(slot, &items[i]);
    }
    call_leave();
    return NVML_SUCCESS;
}
