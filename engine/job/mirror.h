/*
 * A host's part of a copy in memory (--redundancy), on its way to another host. Each host that
 * takes part in a training has a process with a port for that, its mirror (run/hosts_mirror.h), to
 * which others connect: the ranks' after each copy, and, after a failure, the other hosts'.
 *
 *     hello, proof of the secret               without it the mirror closes the connection
 *     ask PUSH step    file data data file ... end    -> answer
 *     ask FETCH step   <- answer    file data ... end
 *     ...
 *
 * Numbers are sent as they lie in memory, as all hosts run the same program.
 */
#ifndef TESSERA_JOB_MIRROR_H
#define TESSERA_JOB_MIRROR_H

#include "comm/boot/boot_door.h"

#include <stdatomic.h>

#define TESS__MIRROR_MAGIC "tsrmirr1"

/* As long as tess__boot_door_look() reads. */
struct tess__mirror_hello {
    char magic[8];
    int32_t attempt; /* a push of an earlier one is refused */
    int32_t zero[5];
};

struct tess__mirror_ask {
    enum tess__mirror_verb { TESS__MIRROR_PUSH, TESS__MIRROR_FETCH } verb;
    int32_t replica; /* FETCH: of the copies that the host keeps for another one, not its own */
    int64_t step;
};

/* A mirror of another host. */
struct tess__mirror {
    char address[BOOT_TEXT_BYTES];
    int32_t port; /* 0: there is none */
    int32_t attempt;
    struct tess_secret secret; /* of the training's mirrors */
    double silent_s;           /* a connection on which nothing moves for so long is given up */
    _Atomic int fd;            /* -1: not connected yet */
};

/* The mirror of the partner in TESS_BOOT_MIRROR, as tess__mirror_text() has written it; port 0:
 * there is no such variable, or nothing of the kind in it. */
void tess__mirror_from_environment(double silent_s, struct tess__mirror *mirror_out);
#define TESS__MIRROR_TEXT (BOOT_TEXT_BYTES + TESS_SECRET_TEXT_BYTES + 32)
void tess__mirror_text(const struct tess__mirror *mirror, char text[TESS__MIRROR_TEXT]);

/* ---- as a client; all: false with the reason in `why` ---------------------------------------- */

/* The complete copy of a step in `run` (state/checkpoint.h) to the mirror. After a failure it is
 * disconnected. */
bool tess__mirror_push(struct tess__mirror *mirror, const char *run, int64_t step, char *why,
                       size_t why_bytes);
/* What another host has of a step, merged into the files of a folder. */
bool tess__mirror_fetch(struct tess__mirror *mirror, int64_t step, bool replica, const char *folder,
                        char *why, size_t why_bytes);
/* Also while another thread pushes, which ends that. close: no other thread does. Nothing to do for
 * one that is zero. */
void tess__mirror_cut(struct tess__mirror *mirror);
void tess__mirror_close(struct tess__mirror *mirror);

/* ---- the files of a folder, as both sides send and receive them -------------------------------
 */

/*
 * What lies in the files of a folder, without the holes. receive: into files that are made, or have
 * the same length and are merged: each byte is the OR of both, as in a part every byte that is
 * another's is 0. What has come before a failure stays. Names, lengths and counts are checked.
 */
bool tess__mirror_send_files(int fd, const char *folder, double silent_s, char *why,
                             size_t why_bytes);
bool tess__mirror_receive_files(int fd, const char *folder, double silent_s, char *why,
                                size_t why_bytes);

#endif
