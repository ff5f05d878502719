/*
 * Running the program as a child; its output and the files it leaves. Every child gets a
 * process group of its own, by which it and its ranks are found. Limits are of awake_s().
 */
#ifndef TESSERA_TESTS_HARNESS_SPAWN_H
#define TESSERA_TESTS_HARNESS_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SPAWN_TEXT_BYTES (1 << 16)

struct spawn {
    pid_t pid;
    int out_fd, err_fd;
    char out[SPAWN_TEXT_BYTES], err[SPAWN_TEXT_BYTES]; /* so far */
    size_t out_used, err_used;
};

/*
 * Start argv (argv[0] is any name, NULL at the end): the built program, or entry(argc, argv) in the
 * child when entry is not NULL.
 */
void spawn_start(struct spawn *spawn, char *const argv[], int (*entry)(int, char **));

/* Read until stdout holds `text`; false when it ends or limit_s pass before. */
bool spawn_until(struct spawn *spawn, const char *text, double limit_s);

/* Read to the end and reap. Exit status, 128 + signal, or -1 after killing it at limit_s. */
int spawn_end(struct spawn *spawn, double limit_s);

/* Are all processes of its group gone, after at most limit_s? */
bool spawn_gone(const struct spawn *spawn, double limit_s);

/* Children of the launcher, in order of start; returns how many of at most `max`. */
int spawn_children(const struct spawn *spawn, pid_t *child, int max);
/* The same of any process. */
int spawn_children_of(pid_t pid, pid_t *child, int max);

/* Suspend a program of 2 ranks as a whole for 4 s, as batch systems do; rank 0 a moment after the
 * others, so that it waits for them. */
void spawn_suspend(const struct spawn *spawn);

/* How often does `part` occur in `text`? */
int spawn_count(const char *text, const char *part);

/* spawn_run of `tessera WORDS`, words separated by single spaces. */
int spawn_words(struct spawn *spawn, const char *words);
/* The same of words that are printed, at most 1,023 bytes. */
__attribute__((format(printf, 2, 3))) int spawn_format(struct spawn *spawn, const char *format,
                                                       ...);

/* What follows `before` on the line where stdout has it, up to a blank, a comma or a semicolon;
 * fails where it is not there. */
void spawn_word(const struct spawn *spawn, const char *before, char word[32]);
/* "hash of all parameters" of a run that has ended. */
void spawn_hash(const struct spawn *spawn, char hash[17]);

/* A whole file, malloc'd, the caller's, with a 0 behind it; bytes_out may be NULL. Fails where it
 * cannot be read. */
char *spawn_file(const char *path, size_t *bytes_out);

/* Remove a test's folder and all in it; a group tear-down's result. */
int spawn_remove(const char *folder);

/* Start, run to the end and fail the test if processes stay. Returns the exit status. How long that
 * takes depends on the machine: CTest has a limit for the whole test. */
int spawn_run(struct spawn *spawn, char *const argv[], int (*entry)(int, char **));

#endif
