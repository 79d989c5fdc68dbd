/* A double of libnvidia-ml.so.1: the C interface of nvml.h, as far as nvidia-ml-py calls it here.
 *
 * Reads $FAKE_NVML_FILE, or /etc/fake-nvml.conf, at each nvmlInit; no file: the driver is not loaded.
 *   init_error=18                  nvmlReturn_t of nvmlInit
 *   driver_version=580.95.05
 *   no_memory_v2=1                 a driver before 510
 *   gpu=NAME|UUID|MINOR|TOTAL_MIB|RESERVED_MIB|USED_MIB|ERROR|PID:MIB,PID:-|MIG_UUID,MIG_UUID
 * ERROR is that of the GPU's handle, 0 for none; "-" as MIB is memory that the driver does not tell.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MIB (1024ULL * 1024)
#define MAX 16

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13 };

struct process { unsigned pid; unsigned long long bytes; };
struct gpu {
    char name[96], uuid[96], mig[MAX][96];
    unsigned minor, processes, migs;
    int error;
    unsigned long long total, reserved, used;
    struct process process[MAX];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process_info { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };

static struct gpu gpus[MAX];
static unsigned count;
static int ready, no_memory_v2;
static char driver[80];

static void copy(char *to, const char *from, size_t size) {
    size_t length = from ? strnlen(from, size - 1) : 0;
    if (length) memcpy(to, from, length);
    to[length] = 0;
}

static void read_gpu(char *text) {
    struct gpu *g = &gpus[count++];
    char *field[9] = {0}, *save = NULL;
    for (int i = 0; i < 9 && text; i++) field[i] = strsep(&text, "|");
    memset(g, 0, sizeof *g);
    copy(g->name, field[0], sizeof g->name);
    copy(g->uuid, field[1], sizeof g->uuid);
    g->minor = field[2] ? atoi(field[2]) : 0;
    g->total = field[3] ? strtoull(field[3], NULL, 10) * MIB : 0;
    g->reserved = field[4] ? strtoull(field[4], NULL, 10) * MIB : 0;
    g->used = field[5] ? strtoull(field[5], NULL, 10) * MIB : 0;
    g->error = field[6] ? atoi(field[6]) : 0;
    for (char *p = field[7] ? strtok_r(field[7], ",", &save) : NULL; p && g->processes < MAX;
         p = strtok_r(NULL, ",", &save)) {
        char *colon = strchr(p, ':');
        struct process *one = &g->process[g->processes++];
        one->pid = strtoul(p, NULL, 10);
        one->bytes = colon && colon[1] != '-' ? strtoull(colon + 1, NULL, 10) * MIB : ~0ULL;
    }
    for (char *m = field[8] ? strtok_r(field[8], ",", &save) : NULL; m && g->migs < MAX;
         m = strtok_r(NULL, ",", &save))
        copy(g->mig[g->migs++], m, sizeof g->mig[0]);
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("FAKE_NVML_FILE");
    FILE *file = fopen(path ? path : "/etc/fake-nvml.conf", "r");
    char line[1024];
    int error = 0;
    (void)flags;
    if (!file) return NOT_LOADED;
    count = 0;
    no_memory_v2 = 0;
    copy(driver, "580.95.05", sizeof driver);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "init_error=", 11)) error = atoi(line + 11);
        if (!strncmp(line, "no_memory_v2=", 13)) no_memory_v2 = atoi(line + 13);
        if (!strncmp(line, "driver_version=", 15)) copy(driver, line + 15, sizeof driver);
        if (!strncmp(line, "gpu=", 4) && count < MAX) read_gpu(line + 4);
    }
    fclose(file);
    ready = !error;
    return error;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) { if (!ready) return UNINITIALIZED; ready = 0; return SUCCESS; }

EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Error of the double";
    }
}
EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned size) { copy(to, driver, size); return SUCCESS; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *to) { if (!ready) return UNINITIALIZED; *to = count; return SUCCESS; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    if (index >= count) return INVALID;
    *to = &gpus[index];
    return gpus[index].error;
}
/* The handle of a MIG device points at its UUID inside of a GPU. */
static int is_gpu(void *h) {
    return ((char *)h - (char *)gpus) % sizeof(struct gpu) == 0;
}
EXPORT int nvmlDeviceGetUUID(void *h, char *to, unsigned size) {
    copy(to, is_gpu(h) ? ((struct gpu *)h)->uuid : (char *)h, size);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetName(struct gpu *g, char *to, unsigned size) { copy(to, g->name, size); return SUCCESS; }
EXPORT int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *to) { *to = g->minor; return SUCCESS; }
EXPORT int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *to) {
    /* The first version counts what the driver reserves as used. */
    to->total = g->total;
    to->used = g->used + g->reserved;
    to->free = to->total - to->used;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(struct gpu *g, struct memory_v2 *to) {
    if (no_memory_v2) return FUNCTION_NOT_FOUND;
    if (to->version != 0x02000028) return INVALID;
    to->total = g->total;
    to->reserved = g->reserved;
    to->used = g->used;
    to->free = g->total - g->reserved - g->used;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *size, struct process_info *to) {
    unsigned room = *size;
    *size = g->processes;
    if (room < g->processes) return TOO_SMALL;
    for (unsigned i = 0; i < g->processes; i++)
        to[i] = (struct process_info){g->process[i].pid, g->process[i].bytes, ~0u, ~0u};
    return SUCCESS;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *g, unsigned *size, struct process_info *to) {
    (void)g; (void)to;
    *size = 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMigMode(struct gpu *g, unsigned *now, unsigned *pending) {
    if (!g->migs) return NOT_SUPPORTED;
    *now = *pending = 1;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *to) { *to = g->migs ? 7 : 0; return SUCCESS; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *g, unsigned index, void **to) {
    if (index >= g->migs) return NOT_FOUND;
    *to = g->mig[index];
    return SUCCESS;
}
