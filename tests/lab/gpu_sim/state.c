/* The state file as a tree of key segments, so that a key finds its most exact cover in one walk. */
#define _POSIX_C_SOURCE 200809L
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codes.h"

static const char DEFAULT_FILE[] = "/run/coderack-lab-gpu/state";

struct node {
    struct node *next, *children;
    char *value;
    size_t length;
    char segment[];
};

static struct node *root;
static struct stat loaded;
static nvmlReturn_t outcome = NVML_ERROR_DRIVER_NOT_LOADED;
static double epoch;

static const char *file_name(void) {
    const char *name = getenv("CODERACK_LAB_NVML_STATE");
    return name && *name ? name : DEFAULT_FILE;
}

/* ---- the tree ---- */

static struct node *new_node(const char *segment, size_t length) {
    struct node *node = calloc(1, sizeof *node + length + 1);
    if (!node)
        abort();
    node->length = length;
    memcpy(node->segment, segment, length);
    return node;
}

static void free_tree(struct node *node) {
    while (node) {
        struct node *next = node->next;
        free_tree(node->children);
        free(node->value);
        free(node);
        node = next;
    }
}

static struct node *child(const struct node *parent, const char *segment, size_t length) {
    for (struct node *node = parent->children; node; node = node->next)
        if (node->length == length && memcmp(node->segment, segment, length) == 0)
            return node;
    return NULL;
}

static void add(struct node *tree, const char *key, const char *value) {
    for (const char *end; *key; key = *end ? end + 1 : end) {
        end = key + strcspn(key, ".");
        struct node *next = child(tree, key, (size_t)(end - key));
        if (!next) {
            next = new_node(key, (size_t)(end - key));
            next->next = tree->children;
            tree->children = next;
        }
        tree = next;
    }
    free(tree->value);
    tree->value = strdup(value);
}

static const char *find(const struct node *tree, const char *key) {
    if (*key == '\0')
        return tree->value;
    size_t length = strcspn(key, ".");
    const char *rest = key + length + (key[length] == '.');
    const struct node *exact = child(tree, key, length);
    const char *value = exact ? find(exact, rest) : NULL;
    if (value)
        return value;
    const struct node *any = child(tree, "*", 1);
    return any ? find(any, rest) : NULL;
}

/* ---- the file ---- */

static char *trimmed(char *text) {
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1]))
        text[--length] = '\0';
    return text;
}

static bool read_line(struct node *tree, char *line, int number) {
    char *key = trimmed(line);
    if (*key == '\0' || *key == '#')
        return true;
    char *equals = strchr(key, '=');
    char *value = equals ? trimmed(equals + 1) : NULL;
    if (equals)
        *equals = '\0';
    key = trimmed(key);
    if (!value || !*value || !*key || strchr(key, ' ') || strlen(key) >= KEY_MAX || strlen(value) >= TEXT_MAX) {
        fprintf(stderr, "simulated NVML: %s line %d is \"%s\"; wanted: key = value. Write the file with State.write.\n",
                file_name(), number, key);
        return false;
    }
    add(tree, key, value);
    return true;
}

static nvmlReturn_t load(FILE *file) {
    struct node *tree = new_node("", 0);
    char *line = NULL;
    size_t room = 0;
    bool good = true;
    for (int number = 1; good && getline(&line, &room, file) >= 0; number++)
        good = read_line(tree, line, number);
    free(line);
    free_tree(root);
    root = tree;
    const char *start = find(tree, "epoch");
    epoch = start ? strtod(start, NULL) : 0;
    return good ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

bool state_file_exists(void) { return access(file_name(), R_OK) == 0; }

nvmlReturn_t state_refresh(void) {
    struct stat now;
    if (stat(file_name(), &now) != 0)
        return root ? outcome : NVML_ERROR_DRIVER_NOT_LOADED; /* a state once read outlives its file */
    if (root && same_file(&now, &loaded))
        return outcome;
    FILE *file = fopen(file_name(), "re");
    if (!file) {
        fprintf(stderr, "simulated NVML: %s cannot be opened (%s); wanted: a readable state file\n", file_name(),
                strerror(errno));
        return NVML_ERROR_UNKNOWN;
    }
    fstat(fileno(file), &loaded);
    outcome = load(file);
    fclose(file);
    return outcome;
}

const char *state_find(const char *key) { return root ? find(root, key) : NULL; }

int state_slots(int slots[SLOTS_MAX]) {
    const char *text = state_find("slots");
    int count = 0;
    for (char *end; text && count < SLOTS_MAX; text = end) {
        long slot = strtol(text, &end, 10);
        if (end == text || slot < 0 || slot >= SLOTS_MAX)
            break;
        slots[count++] = (int)slot;
    }
    return count;
}

/* ---- readings ---- */

const char *reading_raw(int slot, const char *key) {
    char full[KEY_MAX + 16];
    if (slot == NO_SLOT)
        return state_find(key);
    snprintf(full, sizeof full, "gpu.%d.%s", slot, key);
    return state_find(full);
}

/* Copies a key with `link` for its `#`. */
static void put_link(const char *key, unsigned int link, char out[KEY_MAX]) {
    const char *mark = strchr(key, '#');
    if (mark)
        snprintf(out, KEY_MAX, "%.*s%u%s", (int)(mark - key), key, link, mark + 1);
    else
        snprintf(out, KEY_MAX, "%s", key);
}

/* Follows one reference; a reference to a reference is a mistake in a profile and reads as not supported. */
static nvmlReturn_t resolve(int slot, const char *key, unsigned int link, const char **out) {
    const char *value = reading_raw(slot, key);
    if (value && *value == '@') {
        char target[KEY_MAX];
        put_link(value + 1, link, target);
        value = reading_raw(slot, target);
    }
    if (!value || *value == '@')
        return NVML_ERROR_NOT_SUPPORTED;
    if (strncmp(value, "error ", 6) == 0) {
        nvmlReturn_t code;
        return code_from_name(value + 6, &code) ? code : NVML_ERROR_UNKNOWN;
    }
    *out = value;
    return NVML_SUCCESS;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* `100 + 2.5/s` after the number itself: what has been added since the state's epoch. */
static uint64_t risen(const char *rest) {
    double rate;
    if (sscanf(rest, " + %lf/s", &rate) != 1 || now_seconds() < epoch)
        return 0;
    return (uint64_t)(rate * (now_seconds() - epoch));
}

static nvmlReturn_t to_number(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    uint64_t number = *text == '-' ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
    if (end == text || errno) {
        fprintf(stderr, "simulated NVML: \"%s\" in %s; wanted: a number there\n", text, file_name());
        return NVML_ERROR_UNKNOWN;
    }
    *out = number + risen(end);
    return NVML_SUCCESS;
}

nvmlReturn_t reading_link_number(int slot, const char *key, unsigned int link, uint64_t *out) {
    const char *text;
    nvmlReturn_t code = resolve(slot, key, link, &text);
    return code == NVML_SUCCESS ? to_number(text, out) : code;
}

nvmlReturn_t reading_number(int slot, const char *key, uint64_t *out) { return reading_link_number(slot, key, 0, out); }

nvmlReturn_t reading_double(int slot, const char *key, double *out) {
    const char *text;
    nvmlReturn_t code = resolve(slot, key, 0, &text);
    if (code == NVML_SUCCESS)
        *out = strtod(text, NULL);
    return code;
}

nvmlReturn_t reading_text(int slot, const char *key, char *out, size_t room) {
    const char *text;
    nvmlReturn_t code = resolve(slot, key, 0, &text);
    if (code != NVML_SUCCESS)
        return code;
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}
