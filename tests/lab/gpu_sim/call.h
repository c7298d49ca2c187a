/* What every call of the library does first: look at the state, wait, cost, fail, as the state says for that call. */
#ifndef CALL_H
#define CALL_H

#include "nvml.h"
#include "state.h"

#define NVML_API __attribute__((visibility("default")))

/* Between call_enter and call_leave the state does not change. call_enter fails without nvmlInit. */
nvmlReturn_t call_enter(void);
void call_leave(void);

/* The first thing within a call: its wait, its cost and its own error. The state may be newer afterwards. */
nvmlReturn_t call_charge(int slot, const char *name);
void call_cost(int slot, const char *key);

/* Enter and charge for a call of one GPU. On success the caller must call_leave; on failure it must not. */
nvmlReturn_t device_enter(nvmlDevice_t device, const char *name, int *slot);
nvmlDevice_t device_of_slot(int slot);
int slot_of_device(nvmlDevice_t device); /* NO_SLOT for a handle that is not ours */

/* Whole calls that return one reading. */
nvmlReturn_t get_uint(nvmlDevice_t device, const char *name, const char *key, unsigned int *out);
nvmlReturn_t get_ulonglong(nvmlDevice_t device, const char *name, const char *key, unsigned long long *out);
nvmlReturn_t get_text(nvmlDevice_t device, const char *name, const char *key, char *out, unsigned int room);

/* Whole calls that return several: a list of key and place, ended by a NULL key; the first error is the call's. */
struct want {
    const char *key;
    unsigned int *u;
    unsigned long long *ull;
};
nvmlReturn_t get_all(nvmlDevice_t device, const char *name, const struct want *wants);
nvmlReturn_t read_all(int slot, const struct want *wants);

nvmlReturn_t library_start(const char *name);
nvmlReturn_t library_stop(void);

#endif
