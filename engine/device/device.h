/* Loadable modules (tessera/device.h), for the engine. */
#ifndef TESSERA_DEVICE_DEVICE_H
#define TESSERA_DEVICE_DEVICE_H

#include "tessera/device.h"

/* Is there a file of that module where one would be loaded from? Costs a few system calls and loads
 * nothing; tess_module_find tries to load it. */
bool tess__module_is_there(const char *name);

#endif
