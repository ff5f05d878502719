/* Loadable modules (tessera/device.h), for the engine. */
#ifndef TESSERA_DEVICE_DEVICE_H
#define TESSERA_DEVICE_DEVICE_H

#include "tessera/device.h"

/* Is there a file of that module where one would be loaded from? Loads nothing; tess_module_find
 * tries to load it. Asked again about the same name and folders it does not read them again. */
bool tess__module_is_there(const char *name);

/* Is there a driver for the devices of the module for CUDA? Where TESSERA_MODULE_PATH names a
 * module that is taken for granted. Looked for once in a process: some 20 microseconds where there
 * is none; opening the module costs 5,000 times that, most of it for the libraries that it needs.
 */
bool tess__driver_is_there(void);

#endif
