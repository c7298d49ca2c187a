#ifndef CODES_H
#define CODES_H

#include <stdbool.h>

#include "nvml.h"

/* NVML's own words for a code. */
const char *code_text(nvmlReturn_t code);

/* A name without the NVML_ERROR_ prefix, or a number. */
bool code_from_name(const char *name, nvmlReturn_t *code);

#endif
