/* Threads of one rank that share the parts of a piece of work; the caller is one of them. */
#ifndef ENGINE_BASE_TEAM_H
#define ENGINE_BASE_TEAM_H

#include "tessera/status.h"

#include <stdint.h>

struct tess_team;

/* Part `part` of a call, by one thread. */
typedef void tess_team_part(void *context, int64_t part);

/*
 * Start `threads` - 1 threads that call begin(context), NULL: nothing, and wait for work. Returns
 * when all have called it. They take the cores that the caller may use and no signals. Where the
 * system allows fewer, the team is smaller and a warning says so. TESS_ERR_MEMORY. Not before a
 * fork: a child has none of them.
 */
enum tess_status tess_team_open(int threads, void (*begin)(void *context), void *context,
                                struct tess_team **team_out);
void tess_team_close(struct tess_team *team); /* ends the threads; NULL is allowed */

/*
 * Run parts 0 .. parts - 1, each once, in any order, on the caller and at most `hands` - 1 others.
 * A thread takes parts that follow each other as long as the others keep up.
 * Returns when all are done, and what they wrote can be read. A thread that gets no processor in
 * time takes no part, so the caller never waits for one that has not begun. No allocation. By one
 * thread at a time; a part may not call it.
 */
void tess_team_run(struct tess_team *team, int hands, int64_t parts, tess_team_part *run,
                   void *context);

/* Within a part: which of the team's threads runs it, 0 (the caller) .. threads - 1. Else 0. */
int tess_team_hand(void);

#endif
