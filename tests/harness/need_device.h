/*
 * Programs that need a device: what they do where there is none. In a header, so that it is at hand
 * with and without the library of this folder.
 */
#ifndef TESSERA_TESTS_HARNESS_NEED_DEVICE_H
#define TESSERA_TESTS_HARNESS_NEED_DEVICE_H

#include "tessera/device.h"

#include <stdio.h>
#include <stdlib.h>

/* The module of that name; without one, or without a device, the program ends: with 77, skipped,
 * and a sentence. */
static inline const struct tess_module *need_device(const char *name)
{
    char why[512] = "";
    const struct tess_module *module = tess_module_find(name, why, sizeof(why));
    if (module == NULL || module->device_count(why, sizeof(why)) < 1) {
        printf("skipped: %s\n", why);
        exit(77);
    }
    return module;
}

#endif
