/*
 * A listener that trusts none: greetings of connections are read side by side; one that sends
 * something else, or nothing, is closed after a while and only counted. For the rendezvous and for
 * the transport over sockets.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_DOOR_H
#define TESSERA_COMM_BOOT_BOOT_DOOR_H

#include "comm/boot/boot_socket.h"

#define BOOT_PENDING     128 /* connections without a greeting yet, at a time */
#define BOOT_HELLO_BYTES 32

struct boot_pending {
    int fd;
    double since_s;
    size_t got;
    unsigned char hello[BOOT_HELLO_BYTES];
};

struct boot_door {
    struct boot_listener listener;
    struct boot_pending pending[BOOT_PENDING];
    int pending_count;
    int strangers; /* connections that were turned away */
    /* A whole greeting has come; false: the connection is a stranger's, to be closed. */
    bool (*greet)(void *context, int fd, const unsigned char hello[BOOT_HELLO_BYTES]);
    void *context;
};

/* Wait a moment for connections, then take them and read what has come. */
void tess__boot_door_look(struct boot_door *door);
void tess__boot_door_close(struct boot_door *door);

#endif
