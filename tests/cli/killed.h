/* What tests of --restarts share: starting a run, finding its ranks, reading how it ended. */
#ifndef TESSERA_TESTS_CLI_KILLED_H
#define TESSERA_TESTS_CLI_KILLED_H

#include "harness/spawn.h"

#include <jansson.h>

/* Start `tessera WORDS`, separated by spaces. */
void killed_start(struct spawn *spawn, const char *words);

/* 2 ms. */
void killed_nap(void);

/* Wait for the supervisor's launcher, one that is not `former`, and for all of its ranks. Fails the
 * test after a minute. */
pid_t killed_wait_launcher(struct spawn *spawn, pid_t former, int ranks, pid_t *rank);

/* Is this checkpoint of a run complete? Wait until it is; fails the test after a minute. */
bool killed_is_saved(const char *run, long step);
void killed_wait_saved(const char *run, long step);

/* The folder of copies in memory that a run, or a host of one, has made: its supervisor has a lock
 * on it. Waits for it; fails the test after a minute. */
void killed_find_copies(const struct spawn *spawn, char path[300]);
/* Wait until that folder has a copy of a step after `former`; returns its step. */
int killed_wait_copy(const struct spawn *spawn, int former, char path[300]);

/* A number of the last line of a run's metrics; -1: null. */
json_int_t killed_final_number(const char *run, const char *name);

#endif
