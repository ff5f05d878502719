/*
 * NVML through dlopen: opening it, and what a device does at a moment. Prototypes are in
 * nvml_api.h; how devices are joined to each other is nvml_links.c's.
 */
#include "device/nvml_api.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVML_LIBRARY "libnvidia-ml.so.1"

/* Payload over NVLink since the driver was loaded, in KiB; scope: link, all bits for all. */
enum { NVML_FIELD_LINK_TX = 138, NVML_FIELD_LINK_RX = 139 };

/* ---- opening --------------------------------------------------------------------------------- */

/* POSIX lets a pointer to a function be read through one to void, the language does not. */
static void watch_symbol(void *library, const char *name, const char *older, void *function_out)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL && older != NULL)
        symbol = dlsym(library, older);
    memcpy(function_out, &symbol, sizeof(symbol));
}

static void watch_symbols(struct tess_watch *watch)
{
#define NVML_LOOK_UP(member, result, arguments, name, older)                                       \
    watch_symbol(watch->library, name, older, &watch->call.member);
    NVML_FUNCTIONS(NVML_LOOK_UP)
#undef NVML_LOOK_UP
}

static void watch_refuse(const struct tess_watch *watch, nvml_return code, char *why, size_t bytes)
{
    const char *text = watch->call.error_text != NULL ? watch->call.error_text(code) : NULL;
    if (code == NVML_DRIVER_NOT_LOADED)
        snprintf(why, bytes, "no device: NVIDIA's driver is not loaded (nvidia-smi reports more)");
    else if (code == NVML_VERSION_MISMATCH)
        snprintf(why, bytes,
                 "no device: NVIDIA's library and the loaded driver are of different versions; "
                 "load the driver again or restart the machine");
    else if (code == NVML_NO_PERMISSION)
        snprintf(why, bytes, "no device: no permission to use NVIDIA's driver (/dev/nvidiactl)");
    else
        snprintf(why, bytes, "no device: NVIDIA's driver does not start: %s (NVML status %d)",
                 text != NULL ? text : "no further word", code);
}

static bool watch_start(struct tess_watch *watch, char *why, size_t bytes)
{
    const struct nvml_functions *call = &watch->call;
    unsigned devices = 0;
    nvml_return code;

    watch_symbols(watch);
    if (call->start == NULL || call->count == NULL || call->handle == NULL) {
        snprintf(why, bytes, "no device: %s is not NVIDIA's management library, or too old a one",
                 NVML_LIBRARY);
        return false;
    }
    code = call->start();
    watch->started = code == NVML_OK;
    if (code == NVML_OK)
        code = call->count(&devices);
    if (code != NVML_OK) {
        watch_refuse(watch, code, why, bytes);
        return false;
    }
    watch->device_count =
        devices < TESS_WATCH_DEVICES_MAX ? (int32_t)devices : TESS_WATCH_DEVICES_MAX;
    if (devices == 0)
        snprintf(why, bytes, "no device: NVIDIA's driver runs and sees none");
    return devices > 0;
}

static void watch_open_device(struct tess_watch *watch, int32_t index)
{
    struct watch_device *device = &watch->device[index];
    struct nvml_pci pci = {.domain = 0};
    if (watch->call.handle((unsigned)index, &device->handle) != NVML_OK) {
        device->handle = NULL;
        return;
    }
    if (NVML_TRY(&watch->call, pci, device->handle, &pci))
        snprintf(device->bus, sizeof(device->bus), "%04x:%02x:%02x.0", pci.domain, pci.bus,
                 pci.device);
}

struct tess_watch *tess_watch_open(char *why, size_t why_bytes)
{
    const char *path = getenv("TESSERA_NVML");
    struct tess_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) {
        snprintf(why, why_bytes, "no memory to list devices");
        return NULL;
    }
    path = path != NULL && path[0] != '\0' ? path : NVML_LIBRARY;
    watch->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (watch->library == NULL)
        snprintf(why, why_bytes,
                 "no device: NVIDIA's driver is not installed here (%s cannot be opened)", path);
    if (watch->library == NULL || !watch_start(watch, why, why_bytes)) {
        tess_watch_close(watch);
        return NULL;
    }
    for (int32_t d = 0; d < watch->device_count; d++)
        watch_open_device(watch, d);
    return watch;
}

void tess_watch_close(struct tess_watch *watch)
{
    if (watch == NULL)
        return;
    if (watch->started && watch->call.shutdown != NULL)
        (void)watch->call.shutdown(); /* a failure changes nothing */
    if (watch->library != NULL)
        dlclose(watch->library);
    free(watch);
}

int32_t tess_watch_device_count(const struct tess_watch *watch)
{
    return watch->device_count;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void watch_load(const struct nvml_functions *call, nvml_device handle,
                       struct tess_watch_sample *sample)
{
    struct nvml_utilization utilization;
    struct nvml_memory memory;
    unsigned long long throttle = 0;

    if (!NVML_TRY(call, name, handle, sample->name, (unsigned)sizeof(sample->name)))
        sample->name[0] = '\0';
    if (NVML_TRY(call, utilization, handle, &utilization)) {
        sample->gpu_percent = utilization.gpu;
        sample->memory_percent = utilization.memory;
    }
    if (NVML_TRY(call, memory, handle, &memory)) {
        sample->memory_used_bytes = (int64_t)memory.used;
        sample->memory_total_bytes = (int64_t)memory.total;
    }
    if (NVML_TRY(call, throttle, handle, &throttle))
        sample->throttle = (int64_t)throttle;
}

static double watch_clock(const struct nvml_functions *call, nvml_device handle, int clock)
{
    unsigned mhz = 0;
    return NVML_TRY(call, clock, handle, clock, &mhz) ? (double)mhz : (double)NAN;
}

static void watch_body(const struct nvml_functions *call, nvml_device handle,
                       struct tess_watch_sample *sample)
{
    unsigned value = 0;
    sample->sm_mhz = watch_clock(call, handle, NVML_CLOCK_SM);
    sample->memory_mhz = watch_clock(call, handle, NVML_CLOCK_MEMORY);
    if (NVML_TRY(call, power, handle, &value))
        sample->power_w = 1e-3 * value; /* in mW */
    if (NVML_TRY(call, power_limit, handle, &value))
        sample->power_limit_w = 1e-3 * value;
    if (NVML_TRY(call, temperature, handle, NVML_TEMPERATURE_GPU, &value))
        sample->temperature_c = value;
}

static void watch_processes(const struct nvml_functions *call, nvml_device handle,
                            struct tess_watch_sample *sample)
{
    struct nvml_process process[TESS_WATCH_PROCESSES_MAX];
    unsigned count = TESS_WATCH_PROCESSES_MAX;
    /* More than there is room for: how many is known, who they are is not. */
    if (!NVML_TRY(call, processes, handle, &count, process) || count > TESS_WATCH_PROCESSES_MAX)
        return;
    sample->process_count = (int32_t)count;
    for (unsigned p = 0; p < count; p++) {
        const bool known = process[p].memory != ULLONG_MAX;
        sample->process[p].pid = (int32_t)process[p].pid;
        sample->process[p].memory_bytes = known ? (int64_t)process[p].memory : -1;
        if (sample->process[p].pid == (int32_t)getpid())
            sample->own_bytes = sample->process[p].memory_bytes;
    }
}

bool tess__watch_field(const struct nvml_field *field, unsigned long long *value_out)
{
    if (field->status != NVML_OK)
        return false;
    switch (field->type) {
    case NVML_TYPE_UINT:
    case NVML_TYPE_INT:
        *value_out = field->value.small;
        return true;
    case NVML_TYPE_ULONG:
        *value_out = field->value.middle;
        return true;
    case NVML_TYPE_ULLONG:
    case NVML_TYPE_LLONG:
        *value_out = field->value.large;
        return true;
    default:
        return false;
    }
}

/* Counters become rates by the sample before; one that goes back was reset with the driver. */
static void watch_links(const struct nvml_functions *call, struct watch_device *device,
                        struct tess_watch_sample *sample)
{
    struct nvml_field field[2] = {
        {.field = NVML_FIELD_LINK_TX, .scope = NVML_ALL_LINKS},
        {.field = NVML_FIELD_LINK_RX, .scope = NVML_ALL_LINKS},
    };
    unsigned long long tx = 0, rx = 0;
    const double now_s = tess_clock_s(), passed_s = now_s - device->link_s;

    if (!NVML_TRY(call, fields, device->handle, 2, field) || !tess__watch_field(&field[0], &tx) ||
        !tess__watch_field(&field[1], &rx))
        return;
    if (device->link_s > 0 && passed_s > 0 && tx >= device->tx_kib && rx >= device->rx_kib) {
        sample->link_tx_bytes_per_s = 1024 * (double)(tx - device->tx_kib) / passed_s;
        sample->link_rx_bytes_per_s = 1024 * (double)(rx - device->rx_kib) / passed_s;
    }
    device->tx_kib = tx;
    device->rx_kib = rx;
    device->link_s = now_s;
}

void tess_watch_sample(struct tess_watch *watch, int32_t device,
                       struct tess_watch_sample *sample_out)
{
    struct watch_device *watched = &watch->device[device];
    *sample_out = (struct tess_watch_sample){
        .index = device,
        .gpu_percent = NAN,
        .memory_percent = NAN,
        .memory_used_bytes = -1,
        .memory_total_bytes = -1,
        .sm_mhz = NAN,
        .memory_mhz = NAN,
        .power_w = NAN,
        .power_limit_w = NAN,
        .temperature_c = NAN,
        .throttle = -1,
        .link_tx_bytes_per_s = NAN,
        .link_rx_bytes_per_s = NAN,
        .own_bytes = -1,
        .process_count = -1,
    };
    memcpy(sample_out->bus, watched->bus, sizeof(sample_out->bus));
    if (watched->handle == NULL)
        return;
    watch_load(&watch->call, watched->handle, sample_out);
    watch_body(&watch->call, watched->handle, sample_out);
    watch_processes(&watch->call, watched->handle, sample_out);
    watch_links(&watch->call, watched, sample_out);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* "00000000:18:00.0" and "0000:18:00.0" name one place: compare from the end of the domain, and
 * the domain as a number. */
int32_t tess_watch_find(const struct tess_watch *watch, const char *bus)
{
    unsigned domain, number, place, of_domain, of_number, of_place;
    if (sscanf(bus, "%x:%x:%x", &domain, &number, &place) != 3)
        return -1;
    for (int32_t d = 0; d < watch->device_count; d++)
        if (sscanf(watch->device[d].bus, "%x:%x:%x", &of_domain, &of_number, &of_place) == 3 &&
            domain == of_domain && number == of_number && place == of_place)
            return d;
    return -1;
}

/* nvmlClocksEventReasons of the guide. An idle device (bit 0) is not held back, and the user's own
 * settings (bits 1, 8) are no surprise but still the reason. */
static const struct {
    int64_t bit;
    const char *text;
} watch_reason[] = {
    {0x4, "power cap"}, {0x80, "power brake"}, {0x40, "heat (hardware)"}, {0x20, "heat (software)"},
    {0x8, "hardware"},  {0x10, "sync boost"},  {0x2, "clocks set"},       {0x100, "display"},
};

const char *tess_watch_throttle_text(int64_t throttle, char text[TESS_WATCH_THROTTLE_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; throttle > 0 && i < sizeof(watch_reason) / sizeof(*watch_reason); i++) {
        /* Bit 3 comes with the bit of the kind of hardware slowdown. */
        if (watch_reason[i].bit == 0x8 && (throttle & 0xc0) != 0)
            continue;
        if ((throttle & watch_reason[i].bit) != 0 && used < TESS_WATCH_THROTTLE_BYTES)
            used += (size_t)snprintf(text + used, TESS_WATCH_THROTTLE_BYTES - used, "%s%s",
                                     used > 0 ? ", " : "", watch_reason[i].text);
    }
    return text;
}
