/* Loadable modules (tessera/device.h), for the engine. */
#ifndef TESSERA_DEVICE_DEVICE_H
#define TESSERA_DEVICE_DEVICE_H

#include "tessera/device.h"

/* Is there a file of that module where one would be loaded from? Costs a few system calls and loads
 * nothing; tess_module_find tries to load it. */
bool tess__module_is_there(const char *name);

/* Is there a driver for the devices of the module for CUDA? Where TESSERA_MODULE_PATH names a
 * module that is taken for granted. Costs some 20 microseconds where there is none; opening the
 * module costs 5,000 times that, most of it for the libraries that it needs. */
bool tess__driver_is_there(void);

#endif
