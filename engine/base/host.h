/* Which machine this is, and what its kernel says. */
#ifndef TESSERA_BASE_HOST_H
#define TESSERA_BASE_HOST_H

#define TESS_HOST_BOOT 64

/* The kernel's boot_id, drawn when it starts: the same in all containers of a machine, another one
 * on every other. "": it gives none. */
void tess_host_boot(char boot[TESS_HOST_BOOT]);

/* The number after `label` in a file of the kernel's, as /proc/meminfo; -1 when it is missing. */
double tess_host_number(const char *path, const char *label);

#endif
