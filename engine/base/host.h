/* Which machine this is. */
#ifndef TESSERA_BASE_HOST_H
#define TESSERA_BASE_HOST_H

#define TESS_HOST_BOOT 64

/* The kernel's boot_id, drawn when it starts: the same in all containers of a machine, another one
 * on every other. "": it gives none. */
void tess_host_boot(char boot[TESS_HOST_BOOT]);

#endif
