/* What the core itself asks of loadable modules (tessera/device.h). */
#ifndef TESSERA_CORE_DEVICE_H
#define TESSERA_CORE_DEVICE_H

#include "tessera/device.h"

/* Is there a file of that module where one would be loaded from? Costs a few system calls and loads
 * nothing; whether it works is told by tess_module_find. */
bool tess__module_is_there(const char *name);

#endif
