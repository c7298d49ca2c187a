/* The state file: keys and values, read again when the file changed. README.md describes the format. */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml.h"

enum { SLOTS_MAX = 32, KEY_MAX = 160, TEXT_MAX = 256, NO_SLOT = -1 };

/* Reads the file when it is new or changed. DRIVER_NOT_LOADED without a file, UNKNOWN for one that cannot be read. */
nvmlReturn_t state_refresh(void);
bool state_file_exists(void);

/* The value for a key whose segments may each be covered by `*`, or NULL. Valid until the next refresh. */
const char *state_find(const char *key);

/* Readings of one slot, or of the system (NO_SLOT); references, counters and `error NAME` are resolved. */
nvmlReturn_t reading_text(int slot, const char *key, char *out, size_t room);
nvmlReturn_t reading_number(int slot, const char *key, uint64_t *out);
nvmlReturn_t reading_double(int slot, const char *key, double *out);
const char *reading_raw(int slot, const char *key);

/* Puts `link` for the `#` of a reference, for per-link fields. */
nvmlReturn_t reading_link_number(int slot, const char *key, unsigned int link, uint64_t *out);

/* The slots in NVML's order. */
int state_slots(int slots[SLOTS_MAX]);

#endif
