/* Names and texts of NVML's return codes. */
#include <stdlib.h>
#include <string.h>

#include "codes.h"

static const struct {
    nvmlReturn_t code;
    const char *name, *text;
} CODES[] = {
    {0, "SUCCESS", "Success"},
    {1, "UNINITIALIZED", "Uninitialized"},
    {2, "INVALID_ARGUMENT", "Invalid Argument"},
    {3, "NOT_SUPPORTED", "Not Supported"},
    {4, "NO_PERMISSION", "Insufficient Permissions"},
    {5, "ALREADY_INITIALIZED", "Already Initialized"},
    {6, "NOT_FOUND", "Not Found"},
    {7, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {8, "INSUFFICIENT_POWER", "Insufficient External Power"},
    {9, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {10, "TIMEOUT", "Timeout"},
    {11, "IRQ_ISSUE", "Interrupt Request Issue"},
    {12, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
    {13, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {14, "CORRUPTED_INFOROM", "Corrupted infoROM"},
    {15, "GPU_IS_LOST", "GPU is lost"},
    {16, "RESET_REQUIRED", "GPU requires restart"},
    {17, "OPERATING_SYSTEM", "The operating system has blocked the request."},
    {18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
    {19, "IN_USE", "In use by another client"},
    {20, "MEMORY", "Insufficient Memory"},
    {21, "NO_DATA", "No data"},
    {22, "VGPU_ECC_NOT_SUPPORTED", "The requested vgpu operation is not available on target device, because ECC is enabled"},
    {23, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
    {24, "FREQ_NOT_SUPPORTED", "Frequency Not Supported"},
    {25, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"},
    {26, "DEPRECATED", "Requested functionality has been deprecated"},
    {27, "NOT_READY", "System is not in ready state"},
    {28, "GPU_NOT_FOUND", "No GPUs were found"},
    {29, "INVALID_STATE", "Invalid State"},
    {30, "RESET_TYPE_NOT_SUPPORTED", "Reset Type Not Supported"},
    {999, "UNKNOWN", "Unknown Error"},
};
enum { COUNT = sizeof CODES / sizeof *CODES };

const char *code_text(nvmlReturn_t code) {
    for (int i = 0; i < COUNT; i++)
        if (CODES[i].code == code)
            return CODES[i].text;
    return "Unknown Error";
}

bool code_from_name(const char *name, nvmlReturn_t *code) {
    for (int i = 0; i < COUNT; i++)
        if (strcmp(CODES[i].name, name) == 0) {
            *code = CODES[i].code;
            return true;
        }
    char *end;
    unsigned long number = strtoul(name, &end, 0);
    *code = (nvmlReturn_t)number;
    return end != name && *end == '\0';
}
