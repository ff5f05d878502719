/* Where a bench's kernels compute; see bench_place.h. */
#include "bench/bench_place.h"

#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_MODULE "cuda"

/* "cuda" is device 0, "cuda:3" is device 3; anything else is no device. */
static bool place_number(const char *word, int32_t *number_out)
{
    const size_t length = strlen(PLACE_MODULE);
    char *end;
    if (strncmp(word, PLACE_MODULE, length) != 0)
        return false;
    *number_out = 0;
    if (!word[length])
        return true;
    if (word[length] != ':' || word[length + 1] < '0' || word[length + 1] > '9')
        return false;
    const long number = strtol(word + length + 1, &end, 10);
    *number_out = (int32_t)(number < TESS_DEVICE_MAX ? number : TESS_DEVICE_MAX);
    return !*end;
}

static enum tess_status place_on_host(const char *kernel, struct tess__bench_target *place)
{
    return tess_registry_get_kernel(kernel[0] ? kernel : "cpu", &place->ops);
}

static enum tess_status place_on_device(int32_t device, struct tess__bench_target *place)
{
    char why[512] = "";
    const struct tess_module *module = tess_module_find(PLACE_MODULE, why, sizeof(why));
    const int32_t count = module ? module->device_count(why, sizeof(why)) : 0;
    if (count < 1)
        TESS_FAIL(TESS_ERR_DEVICE,
                  "there is no device to measure: %s; --kernel cpu measures the host's kernels",
                  why);
    if (device >= count)
        TESS_FAIL(TESS_ERR_USAGE, "there is no device %d: this machine has %d, numbered from 0",
                  (int)device, (int)count);
    place->module = module;
    place->device = device;
    TESS_TRY(module->device_info(device, &place->info));
    return tess_registry_get_kernel(PLACE_MODULE, &place->ops);
}

enum tess_status tess__bench_place_find(const char *device, const char *kernel,
                                        struct tess__bench_target *place_out)
{
    const bool module_kernel = strcmp(kernel, PLACE_MODULE) == 0;
    const bool host_kernel = kernel[0] && !module_kernel;
    const bool any = strcmp(device, "auto") == 0, host = strcmp(device, "cpu") == 0;
    int32_t number = 0;
    *place_out = (struct tess__bench_target){.ops = NULL};
    if (!any && !host && !place_number(device, &number))
        TESS_FAIL(TESS_ERR_USAGE, "--device '%s': expected auto, cpu, cuda or cuda:N", device);
    if (!any && !host && host_kernel)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--device %s has kernels of its own, and --kernel %s computes on the host: give "
                  "one of the two",
                  device, kernel);
    if (host && module_kernel)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--kernel %s computes on a device and --device cpu on the host: give one of the "
                  "two",
                  kernel);
    return host || host_kernel ? place_on_host(kernel, place_out)
                               : place_on_device(number, place_out);
}

enum tess_status tess__bench_place_open(const struct tess__bench_target *place, int threads,
                                        struct tess_kernel **kernel_out)
{
    if (place->module)
        TESS_TRY(place->module->device_select(place->device, false));
    return tess_kernel_open(place->ops, threads, kernel_out);
}

void tess__bench_place_close(struct tess_kernel *kernel)
{
    tess_kernel_close(kernel);
}

const char *tess__bench_place_text(const struct tess__bench_target *place, char text[128])
{
    if (place->module)
        snprintf(text, 128, "%s, device %d", place->info.name, (int)place->device);
    else
        snprintf(text, 128, "kernel %s on the host", place->ops->name);
    return text;
}
