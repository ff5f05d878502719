/* In the place of bind_hwloc.c where libhwloc was not there when Tessera was built. */
#include "topology/hwloc/live.h"

#include <stdio.h>

bool tess_bind_place(int32_t at, int32_t count, const char *const *bus, char text[TESS_BIND_TEXT])
{
    (void)at, (void)count, (void)bus;
    snprintf(text, TESS_BIND_TEXT, "not bound: this Tessera was built without hwloc");
    return false;
}

bool tess_bind_check(void)
{
    return true; /* nothing was bound that could have been loosened */
}
