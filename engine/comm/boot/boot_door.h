/*
 * A listener that trusts none: greetings of connections are read side by side. One that sends
 * something else, or nothing, or that does not prove that it has the secret, is closed within a
 * second and only counted. Where there are too many, the oldest of them is closed, so that nobody
 * waits behind connections that are silent.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_DOOR_H
#define TESSERA_COMM_BOOT_BOOT_DOOR_H

#include "comm/boot/boot_secret.h"
#include "comm/boot/boot_socket.h"

#define BOOT_PENDING     1024 /* connections without a greeting yet, at a time */
#define BOOT_HELLO_BYTES TESS_GREETING_BYTES
#define BOOT_HELLO_MOST  200 /* of one that proves itself */

struct boot_pending {
    int fd;
    double since_s;
    size_t got; /* bytes of the answer, or of the greeting */
    struct tess_secret_challenge challenge;
    union {
        struct tess_secret_answer answer;
        unsigned char hello[BOOT_HELLO_MOST];
    };
};

/* Zero but for greet, context and secret or hello_bytes, before the first look. */
struct boot_door {
    struct boot_listener listener;
    const struct tess_secret *secret; /* of the job; NULL: `greet` finds out whose greetings are */
    size_t hello_bytes;               /* secret NULL: of a greeting; BOOT_HELLO_MOST at most */
    struct boot_pending *pending;     /* [pending_room], BOOT_PENDING at most */
    int pending_count, pending_room;
    int strangers; /* connections that were turned away */
    int unproved;  /* of them those without the secret */
    /* A whole greeting has come; false: the connection is a stranger's, to be closed. */
    bool (*greet)(void *context, int fd, const unsigned char *hello);
    void *context;
};

/* Wait a moment for connections, then take them and read what has come. */
void tess__boot_door_look(struct boot_door *door);
/* The same without waiting. */
void tess__boot_door_take(struct boot_door *door);
/* For the message of a timeout: "; turned away: ..." and how many connections, or "". */
void tess__boot_door_others(const struct boot_door *door, char *text, size_t bytes);
void tess__boot_door_close(struct boot_door *door);

/* The other side: greet, prove that this process has the secret, and have the other side prove it.
 * Else the reason is in `why`: TESS_ERR_COMM, nothing came or the connection has ended;
 * TESS_ERR_DATA, what listens there is not of this program; TESS_ERR_USAGE, it is, and does not
 * have the secret. */
enum tess_status tess__boot_knock(int fd, const struct tess_secret *secret,
                                  const unsigned char greeting[TESS_GREETING_BYTES], double limit_s,
                                  char *why, size_t why_bytes);

#endif
