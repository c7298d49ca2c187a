#ifndef PCI_H
#define PCI_H

#include <stdbool.h>

#include "nvml.h"

/* Fills all but the ids from "00000000:1b:00.0". */
bool parse_bus_id(const char *text, nvmlPciInfo_t *pci);

#endif
