/* What the launcher asks of the system: pipes, limits, and how a process ended. */
#ifndef TESSERA_JOB_LAUNCH_SYSTEM_H
#define TESSERA_JOB_LAUNCH_SYSTEM_H

#include "tessera/status.h"

#include <stddef.h>
#include <stdint.h>

/* Ranks have open files for each other, the launcher for those elsewhere: as many as this process
 * may have, not as many as shells set for programs that use select(). */
void tess__launch_raise_files(void);
/* By errno, after a call that opens a file: ": raise the limit (ulimit -n)" or "". */
const char *tess__launch_files_hint(void);

/* Reading does not block. */
enum tess_status tess__launch_open_pipe(int *read_out, int *write_out);

/* Processes that the kernel has ended for want of memory since it was started; 0: not known. */
uint64_t tess__launch_oom_kills(void);
/* "was killed by signal 9 (Killed)", of a process that ended by wait_status; oom_kills: when it was
 * started. */
void tess__launch_explain_death(int wait_status, uint64_t oom_kills, char *how, size_t bytes);

#endif
