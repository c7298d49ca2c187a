#define _GNU_SOURCE
#include "call.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codes.h"

struct device {
    int slot;
};

static struct device devices[SLOTS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;

/* ---- time ---- */

enum { SPIN_NS = 60000 }; /* a sleep overshoots by about this much, the timer slack of a process */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_ns(int64_t length) {
    struct timespec time = {length / 1000000000, length % 1000000000};
    nanosleep(&time, NULL);
}

static void spend_us(double microseconds) {
    int64_t end = now_ns() + (int64_t)(microseconds * 1000);
    if (end - now_ns() > SPIN_NS)
        sleep_ns(end - now_ns() - SPIN_NS);
    while (now_ns() < end) {
    }
}

/* ---- what the state says about a call ---- */

/* `gpu.N.call.NAME.what`, else `call.NAME.what`. */
static const char *said(int slot, const char *name, const char *what) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "call.%s.%s", name, what);
    const char *value = slot == NO_SLOT ? NULL : reading_raw(slot, key);
    return value ? value : state_find(key);
}

/* Seconds that the call has still to wait; infinite for `forever`, 0 when nothing is said. */
static double wanted_wait(int slot, const char *name) {
    const char *value = said(slot, name, "sleep");
    if (!value)
        return 0;
    return strcmp(value, "forever") == 0 ? INFINITY : strtod(value, NULL);
}

/* Looks at the state again while it waits: a repaired state frees the call, and so does one that was removed, so that
 * tests leave no process behind for ever. */
static void wait_as_said(int slot, const char *name) {
    double seconds = wanted_wait(slot, name);
    if (seconds <= 0)
        return;
    sigset_t blocked, before;
    sigemptyset(&blocked);
    if (isinf(seconds))
        sigfillset(&blocked);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int64_t start = now_ns();
    while (seconds > 0 && (double)(now_ns() - start) < seconds * 1e9) {
        double rest = seconds * 1e9 - (double)(now_ns() - start);
        pthread_mutex_unlock(&lock);
        sleep_ns(rest > 5e7 ? 50000000 : (int64_t)rest);
        pthread_mutex_lock(&lock);
        state_refresh();
        seconds = state_file_exists() ? wanted_wait(slot, name) : 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void call_cost(int slot, const char *key) {
    const char *value = slot == NO_SLOT ? NULL : reading_raw(slot, key);
    value = value ? value : state_find(key);
    if (!value)
        return;
    double microseconds = strtod(value, NULL);
    pthread_mutex_unlock(&lock);
    spend_us(microseconds);
    pthread_mutex_lock(&lock);
}

nvmlReturn_t call_charge(int slot, const char *name) {
    if (said(slot, name, "absent"))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    wait_as_said(slot, name);
    char key[KEY_MAX];
    snprintf(key, sizeof key, "call.%s.cost_us", name);
    call_cost(slot, key);
    const char *error = said(slot, name, "error");
    nvmlReturn_t code = NVML_SUCCESS;
    if (error && !code_from_name(error, &code)) {
        fprintf(stderr, "simulated NVML: error \"%s\" of %s; wanted: a return code such as GPU_IS_LOST\n", error, name);
        code = NVML_ERROR_UNKNOWN;
    }
    return code;
}

/* ---- begin and end ---- */

nvmlReturn_t call_enter(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? state_refresh() : NVML_ERROR_UNINITIALIZED;
    if (code != NVML_SUCCESS)
        pthread_mutex_unlock(&lock);
    return code;
}

void call_leave(void) { pthread_mutex_unlock(&lock); }

nvmlReturn_t device_enter(nvmlDevice_t device, const char *name, int *slot) {
    nvmlReturn_t code = call_enter();
    if (code != NVML_SUCCESS)
        return code;
    *slot = slot_of_device(device);
    code = *slot == NO_SLOT ? NVML_ERROR_INVALID_ARGUMENT : call_charge(*slot, name);
    if (code != NVML_SUCCESS)
        call_leave();
    return code;
}

nvmlDevice_t device_of_slot(int slot) {
    devices[slot].slot = slot;
    return &devices[slot];
}

int slot_of_device(nvmlDevice_t device) {
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        if (device == &devices[slot])
            return slot;
    return NO_SLOT;
}

nvmlReturn_t library_start(const char *name) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = state_refresh();
    if (code == NVML_SUCCESS)
        code = call_charge(NO_SLOT, name);
    if (code == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return code;
}

nvmlReturn_t library_stop(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- whole calls ---- */

nvmlReturn_t read_all(int slot, const struct want *wants) {
    for (; wants->key; wants++) {
        uint64_t number;
        nvmlReturn_t code = reading_number(slot, wants->key, &number);
        if (code != NVML_SUCCESS)
            return code;
        if (wants->u)
            *wants->u = (unsigned int)number;
        if (wants->ull)
            *wants->ull = number;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t get_all(nvmlDevice_t device, const char *name, const struct want *wants) {
    int slot;
    nvmlReturn_t code = device_enter(device, name, &slot);
    if (code != NVML_SUCCESS)
        return code;
    code = read_all(slot, wants);
    call_leave();
    return code;
}

nvmlReturn_t get_uint(nvmlDevice_t device, const char *name, const char *key, unsigned int *out) {
    return get_all(device, name, (struct want[]){{key, out, NULL}, {NULL, NULL, NULL}});
}

nvmlReturn_t get_ulonglong(nvmlDevice_t device, const char *name, const char *key, unsigned long long *out) {
    return get_all(device, name, (struct want[]){{key, NULL, out}, {NULL, NULL, NULL}});
}

nvmlReturn_t get_text(nvmlDevice_t device, const char *name, const char *key, char *out, unsigned int room) {
    int slot;
    nvmlReturn_t code = device_enter(device, name, &slot);
    if (code != NVML_SUCCESS)
        return code;
    code = reading_text(slot, key, out, room);
    call_leave();
    return code;
}
