/* A stand-in for the driver's libnvidia-ml.so.1, so that all of our NVML code runs for real on
 * machines without a GPU. What it tells is read from the text file $FAIRLEAD_NVML_STATE before
 * every call (tests/support/nvml/__init__.py writes it), events from the same path + ".events".
 *
 *   driver VERSION            init CODE                 (what nvmlInit returns)
 *   gpu I key=value ...       a GPU; '_' in a name stands for a space. With anew=1 its handles
 *                             from before are lost, and new ones are not
 *   mig I K key=value ...     MIG instance K of GPU I
 *   process I PID MIB         a compute process that holds memory
 *   near I J LEVEL            common PCIe ancestor (NVML's numbers)
 *   nvlink I J                the two reach each other over NVLink
 *   fail FUNCTION CODE [I]    that function returns CODE (for GPU I only)
 *   hang FUNCTION [I]         that function does not return while this line is there
 *
 * A line "I XID" appended to the events file is an XID of GPU I. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define GPUS 16
#define MIGS 8
#define ANEW (1 + MIGS) /* the place of the handle that a card with anew=1 has */
#define PLACES (2 + MIGS)
#define PROCESSES 32
#define RULES 32

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
};
enum { RECOVERY_ACTION_FIELD = 230, XID_EVENT = 8 };

struct device {
    int present, gpu, instance, minor, lost, anew, mig, numa, recovery, ecc, remap_pending, remap_failed;
    int major, minor_cc, gi, ci, temperature, utilization, power, processes;
    unsigned long long memory, used;
    unsigned pid[PROCESSES];
    unsigned long long held[PROCESSES];
    char uuid[96], name[96], pci[32];
};
struct rule { char function[64]; int code, gpu; };

static struct {
    struct device devices[GPUS][PLACES];
    int count, init, near[GPUS][GPUS], nvlink[GPUS][GPUS], failing, hanging;
    struct rule fail[RULES], hang[RULES];
    char driver[80];
} state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized;

static const char *state_path(void)
{
    const char *path = getenv("FAIRLEAD_NVML_STATE");
    return path ? path : "/nonexistent";
}

static void set(struct device *d, const char *key, const char *value)
{
    long long number = atoll(value);
    struct { const char *key; int *where; } ints[] = {
        {"minor", &d->minor}, {"lost", &d->lost}, {"anew", &d->anew}, {"mig", &d->mig}, {"numa", &d->numa},
        {"recovery", &d->recovery}, {"ecc", &d->ecc}, {"pending", &d->remap_pending},
        {"failed", &d->remap_failed}, {"gi", &d->gi}, {"ci", &d->ci},
        {"temperature", &d->temperature}, {"utilization", &d->utilization}, {"power", &d->power},
    };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        if (!strcmp(key, ints[i].key)) *ints[i].where = (int)number;
    if (!strcmp(key, "memory")) d->memory = (unsigned long long)number;
    if (!strcmp(key, "used")) d->used = (unsigned long long)number;
    if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", value);
    if (!strcmp(key, "pci")) snprintf(d->pci, sizeof d->pci, "%s", value);
    if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &d->major, &d->minor_cc);
    if (!strcmp(key, "name")) {
        snprintf(d->name, sizeof d->name, "%s", value);
        for (char *c = d->name; *c; c++) if (*c == '_') *c = ' ';
    }
}

static void read_device(struct device *d, int gpu, int instance, char *line)
{
    char *rest = NULL;
    d->present = 1, d->gpu = gpu, d->instance = instance, d->minor = gpu;
    d->mig = d->numa = d->recovery = -1;
    for (char *word = strtok_r(line, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        char *value = strchr(word, '=');
        if (value) { *value++ = 0; set(d, word, value); }
    }
}

static void read_rule(struct rule *rules, int *count, const char *function, int code, int gpu)
{
    if (*count == RULES) return;
    snprintf(rules[*count].function, sizeof rules->function, "%s", function);
    rules[*count].code = code;
    rules[(*count)++].gpu = gpu;
}

static void read_line(char *line)
{
    int a, b, level, gpu = -1;
    unsigned pid;
    unsigned long long mib;
    char word[64];
    if (sscanf(line, "driver %79s", state.driver) == 1) return;
    if (sscanf(line, "init %d", &state.init) == 1) return;
    if (sscanf(line, "near %d %d %d", &a, &b, &level) == 3 && a < GPUS && b < GPUS)
        state.near[a][b] = state.near[b][a] = level;
    else if (sscanf(line, "nvlink %d %d", &a, &b) == 2 && a < GPUS && b < GPUS)
        state.nvlink[a][b] = state.nvlink[b][a] = 1;
    else if (sscanf(line, "process %d %u %llu", &a, &pid, &mib) == 3 && a < GPUS) {
        struct device *d = &state.devices[a][0];
        if (d->processes < PROCESSES) d->pid[d->processes] = pid, d->held[d->processes++] = mib;
    } else if (sscanf(line, "fail %63s %d %d", word, &a, &gpu) >= 2)
        read_rule(state.fail, &state.failing, word, a, gpu);
    else if (sscanf(line, "hang %63s %d", word, &gpu) >= 1)
        read_rule(state.hang, &state.hanging, word, 0, gpu);
    else if (sscanf(line, "gpu %d", &a) == 1 && a < GPUS) {
        read_device(&state.devices[a][0], a, -1, line);
        if (a >= state.count) state.count = a + 1;
    } else if (sscanf(line, "mig %d %d", &a, &b) == 2 && a < GPUS && b < MIGS)
        read_device(&state.devices[a][1 + b], a, b, line);
}

static void load(void)
{
    char line[1024];
    FILE *file = fopen(state_path(), "re");
    memset(&state, 0, sizeof state);
    state.init = file ? SUCCESS : DRIVER_NOT_LOADED;
    for (int a = 0; a < GPUS; a++)
        for (int b = 0; b < GPUS; b++) state.near[a][b] = a == b ? 0 : 50;
    while (file && fgets(line, sizeof line, file)) read_line(line);
    if (file) fclose(file);
    for (int a = 0; a < GPUS; a++) state.devices[a][ANEW] = state.devices[a][0];
}

static const struct rule *matching(const struct rule *rules, int count, const char *name, int gpu)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(rules[i].function, name) && (rules[i].gpu < 0 || rules[i].gpu == gpu))
            return &rules[i];
    return NULL;
}

/* Returns with the lock held. `gpu` -1: the call concerns none. */
static int enter_for(const char *name, int gpu)
{
    pthread_mutex_lock(&lock);
    for (load(); matching(state.hang, state.hanging, name, gpu); load()) {
        struct timespec pause = {0, 5000000};
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    if (!initialized && strncmp(name, "nvmlInit", 8)) return UNINITIALIZED;
    if (gpu >= 0 && (!state.devices[gpu][0].present || state.devices[gpu][0].lost)) return GPU_IS_LOST;
    const struct rule *failing = matching(state.fail, state.failing, name, gpu);
    return failing ? failing->code : SUCCESS;
}

static int enter(const char *name, const struct device *d)
{
    /* By its place: what the handle points to is being read anew by whoever holds the lock. */
    int at = d ? (int)(d - &state.devices[0][0]) : -1, place = at % PLACES;
    int rc = enter_for(name, d ? at / PLACES : -1);
    if (rc != SUCCESS || !d) return rc;
    int is_board = place == 0 || place == ANEW, is_anew = state.devices[at / PLACES][0].anew;
    return !d->present || (is_board && (place == ANEW) != is_anew) ? GPU_IS_LOST : SUCCESS;
}

#define CALL(d, ...) { \
    int rc = enter(__func__, d); \
    if (rc == SUCCESS) { __VA_ARGS__ } \
    pthread_mutex_unlock(&lock); \
    return rc; \
}
typedef struct device *handle;

static int put(char *buffer, unsigned size, const char *text)
{
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static unsigned long long used_mib(const struct device *d)
{
    unsigned long long sum = d->used;
    for (int i = 0; i < d->processes; i++) sum += d->held[i];
    return sum;
}

API int nvmlInitWithFlags(unsigned flags) CALL(NULL, (void)flags; rc = state.init; if (!rc) initialized++;)
API int nvmlShutdown(void) CALL(NULL, initialized--;)
API const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "planted error"; }
API int nvmlSystemGetDriverVersion(char *buffer, unsigned size) CALL(NULL, rc = put(buffer, size, state.driver);)
API int nvmlDeviceGetCount_v2(unsigned *count) CALL(NULL, *count = (unsigned)state.count;)
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *d)
{
    int rc = i < GPUS ? enter_for(__func__, (int)i) : enter_for(__func__, -1);
    if ((int)i >= state.count) rc = INVALID;
    if (rc == SUCCESS) *d = &state.devices[i][state.devices[i][0].anew ? ANEW : 0];
    pthread_mutex_unlock(&lock);
    return rc;
}
API int nvmlDeviceGetUUID(handle d, char *buffer, unsigned size) CALL(d, rc = put(buffer, size, d->uuid);)
API int nvmlDeviceGetName(handle d, char *buffer, unsigned size) CALL(d, rc = put(buffer, size, d->name);)
API int nvmlDeviceGetMinorNumber(handle d, unsigned *minor) CALL(d, *minor = (unsigned)d->minor;)
API int nvmlDeviceGetCudaComputeCapability(handle d, int *major, int *minor)
CALL(d, *major = d->major; *minor = d->minor_cc;)
API int nvmlDeviceGetNumaNodeId(handle d, unsigned *node)
CALL(d, if (d->numa < 0) rc = NOT_SUPPORTED; else *node = (unsigned)d->numa;)

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
API int nvmlDeviceGetPciInfo_v3(handle d, struct pci *p)
CALL(d, memset(p, 0, sizeof *p); snprintf(p->bus_id, sizeof p->bus_id, "%s", d->pci);)

struct memory { unsigned version; unsigned long long total, reserved, free, used; };
API int nvmlDeviceGetMemoryInfo_v2(handle d, struct memory *m)
CALL(d, m->total = d->memory << 20; m->reserved = 0; m->used = used_mib(d) << 20; m->free = m->total - m->used;)
struct old_memory { unsigned long long total, free, used; };
API int nvmlDeviceGetMemoryInfo(handle d, struct old_memory *m)
CALL(d, m->total = d->memory << 20; m->used = used_mib(d) << 20; m->free = m->total - m->used;)

struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
API int nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *count, struct process *found)
CALL(d,
    unsigned room = *count;
    *count = (unsigned)d->processes;
    if (room < *count) rc = INSUFFICIENT_SIZE;
    for (unsigned i = 0; rc == SUCCESS && i < *count; i++) {
        struct process one = {d->pid[i], d->held[i] << 20, ~0u, ~0u};
        found[i] = one;
    })

struct utilization { unsigned gpu, memory; };
API int nvmlDeviceGetUtilizationRates(handle d, struct utilization *u)
CALL(d, u->gpu = (unsigned)d->utilization; u->memory = 0;)
API int nvmlDeviceGetTemperature(handle d, int sensor, unsigned *value)
CALL(d, (void)sensor; *value = (unsigned)d->temperature;)
API int nvmlDeviceGetPowerUsage(handle d, unsigned *milliwatts) CALL(d, *milliwatts = (unsigned)d->power;)
API int nvmlDeviceGetTotalEccErrors(handle d, int kind, int counter, unsigned long long *count)
CALL(d, (void)counter; *count = kind == 1 ? (unsigned long long)d->ecc : 0;)
API int nvmlDeviceGetRemappedRows(handle d, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed)
CALL(d, *corrected = *not = 0; *pending = (unsigned)d->remap_pending; *failed = (unsigned)d->remap_failed;)

struct field { unsigned id, scope; long long time, latency; unsigned type; int code; union { unsigned ui; unsigned long long ull; } value; };
API int nvmlDeviceGetFieldValues(handle d, int count, struct field *fields)
CALL(d, for (int i = 0; i < count; i++) {
    int known = fields[i].id == RECOVERY_ACTION_FIELD && d->recovery >= 0;
    fields[i].code = known ? SUCCESS : NOT_SUPPORTED;
    fields[i].type = 1;
    fields[i].value.ull = known ? (unsigned long long)d->recovery : 0;
})

API int nvmlDeviceGetTopologyCommonAncestor(handle a, handle b, int *level)
CALL(a, *level = state.near[a->gpu][b->gpu];)
API int nvmlDeviceGetP2PStatus(handle a, handle b, int index, int *status)
CALL(a, *status = index == 2 && state.nvlink[a->gpu][b->gpu] ? 0 : 5;)

API int nvmlDeviceGetMigMode(handle d, unsigned *now, unsigned *pending)
CALL(d, if (d->mig < 0) rc = NOT_SUPPORTED; else *now = *pending = (unsigned)d->mig;)
API int nvmlDeviceGetMaxMigDeviceCount(handle d, unsigned *count) CALL(d, *count = d->mig > 0 ? MIGS : 0;)
API int nvmlDeviceGetMigDeviceHandleByIndex(handle d, unsigned i, handle *found)
CALL(d, if (i >= MIGS || !state.devices[d->gpu][1 + i].present) rc = NOT_FOUND; else *found = &state.devices[d->gpu][1 + i];)
API int nvmlDeviceGetGpuInstanceId(handle d, unsigned *id) CALL(d, *id = (unsigned)d->gi;)
API int nvmlDeviceGetComputeInstanceId(handle d, unsigned *id) CALL(d, *id = (unsigned)d->ci;)

struct event_set { unsigned watched; long at; };
struct event { handle device; unsigned long long type, data; unsigned gi, ci; };

static const char *events_path(char *buffer, size_t size)
{
    snprintf(buffer, size, "%s.events", state_path());
    return buffer;
}

API int nvmlEventSetCreate(struct event_set **set)
CALL(NULL,
    char path[1024];
    struct stat found;
    *set = calloc(1, sizeof **set);
    (*set)->at = stat(events_path(path, sizeof path), &found) ? 0 : (long)found.st_size;)
API int nvmlEventSetFree(struct event_set *set) { free(set); return SUCCESS; }
API int nvmlDeviceRegisterEvents(handle d, unsigned long long types, struct event_set *set)
CALL(d, if (types & XID_EVENT) set->watched |= 1u << d->gpu;)

static int next_event(struct event_set *set, struct event *event)
{
    char path[1024], line[128];
    int found = 0, gpu;
    unsigned long long xid;
    FILE *file = fopen(events_path(path, sizeof path), "re");
    if (!file) return 0;
    fseek(file, set->at, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        set->at = ftell(file);
        if (sscanf(line, "%d %llu", &gpu, &xid) != 2 || gpu < 0 || gpu >= GPUS) continue;
        if (!(set->watched & 1u << gpu)) continue;
        struct event one = {&state.devices[gpu][0], XID_EVENT, xid, ~0u, ~0u};
        *event = one;
        found = 1;
    }
    fclose(file);
    return found;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned milliseconds)
{
    struct timespec pause = {0, 5000000};
    for (unsigned waited = 0;; waited += 5) {
        int rc = enter(__func__, NULL);
        pthread_mutex_unlock(&lock);
        if (rc != SUCCESS) return rc;
        if (next_event(set, event)) return SUCCESS;
        if (waited >= milliseconds) return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
