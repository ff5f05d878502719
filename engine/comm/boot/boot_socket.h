/*
 * Sockets of the bootstrap: connections between ranks, every step with a limit in time. `limit_s`
 * is a moment of tess_clock_s(). For this room and for the communicator of a module.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_SOCKET_H
#define TESSERA_COMM_BOOT_BOOT_SOCKET_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOOT_LISTEN_MAX 4
#define BOOT_WHY_BYTES  160
#define BOOT_TEXT_BYTES 64 /* a numeric address */

/* What a process listens on: the number of an interface of this host alone, the addresses of a name
 * such as localhost, or, where it is another name, all of this host. */
struct boot_listener {
    int fd[BOOT_LISTEN_MAX];
    int count;
};

/* Is it this host alone that is meant, by a number or as "localhost"? */
bool tess__boot_is_loopback(const char *address);

/* 0, or the errno of what is wrong; logs nothing. */
int tess__boot_try_listen(const char *address, int32_t port, struct boot_listener *listener_out);
/* TESS_ERR_COMM with address, port and reason. */
enum tess_status tess__boot_listen(const char *address, int32_t port,
                                   struct boot_listener *listener_out);
/* The port that it got where 0 was requested; of the first of several addresses. */
int32_t tess__boot_port(const struct boot_listener *listener);
void tess__boot_unlisten(struct boot_listener *listener);
/* A connection that waits, not blocking; -1: none. */
int tess__boot_accept(const struct boot_listener *listener);

/* Connect to the first address of the name that answers, trying once; -1 with the reason in
 * `why`. */
int tess__boot_connect(const char *address, int32_t port, double limit_s, char *why,
                       size_t why_bytes);

/* All bytes by the time limit? On false `why`, unless NULL, has what came instead. */
bool tess__boot_send(int fd, const void *bytes, size_t count, double limit_s, char *why,
                     size_t why_bytes);
bool tess__boot_receive(int fd, void *bytes, size_t count, double limit_s, char *why,
                        size_t why_bytes);
/* Would a receive find something now, be it the end? */
bool tess__boot_ready(int fd);
/* Wait until it does on one of two; false when the time is up. */
bool tess__boot_wait_either(int fd, int other, double limit_s);

/*
 * A process that is to have so many connections, `what` they are for: raise RLIMIT_NOFILE where it
 * must be. TESS_ERR_USAGE where the hard limit does not do.
 */
enum tess_status tess__boot_need_files(int64_t count, const char *what);

/* A host without power or link sends nothing: its kernel is probed every second, and given up in
 * half of the time limit, before ranks that wait for each other report each other. Where that
 * cannot be set, they do. */
void tess__boot_keep_alive(int fd, double timeout_s);

/* This side's and the other side's address of a connection, numeric; "?" if not known. */
void tess__boot_own_text(int fd, char text[BOOT_TEXT_BYTES]);
void tess__boot_peer_text(int fd, char text[BOOT_TEXT_BYTES]);

#endif
