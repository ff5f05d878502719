/* Connections that have not shown yet whose they are; see boot_door.h. */
#include "comm/boot/boot_door.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define DOOR_HELLO_S 5.0 /* after which a connection without a greeting is closed */
#define DOOR_WAIT_MS 100 /* callers and silent connections have limits of their own */

static void door_wait(const struct boot_door *door)
{
    struct pollfd watch[BOOT_LISTEN_MAX + BOOT_PENDING];
    nfds_t count = 0;
    for (int i = 0; i < door->listener.count && door->pending_count < BOOT_PENDING; i++)
        watch[count++] = (struct pollfd){.fd = door->listener.fd[i], .events = POLLIN};
    for (int i = 0; i < door->pending_count; i++)
        watch[count++] = (struct pollfd){.fd = door->pending[i].fd, .events = POLLIN};
    (void)poll(watch, count, DOOR_WAIT_MS);
}

/* Read what has come of a greeting. False: this connection is no longer pending. */
static bool door_read(struct boot_door *door, struct boot_pending *pending)
{
    const ssize_t got =
        recv(pending->fd, pending->hello + pending->got, sizeof(pending->hello) - pending->got, 0);
    const bool later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (got > 0)
        pending->got += (size_t)got;
    const bool whole = pending->got == sizeof(pending->hello);
    if (whole && door->greet(door->context, pending->fd, pending->hello))
        return false;
    if ((got > 0 || later) && !whole && tess_clock_s() - pending->since_s <= DOOR_HELLO_S)
        return true;
    door->strangers++;
    close(pending->fd);
    return false;
}

void tess__boot_door_look(struct boot_door *door)
{
    int kept = 0, fd;
    door_wait(door);
    while (door->pending_count < BOOT_PENDING && (fd = tess__boot_accept(&door->listener)) >= 0)
        door->pending[door->pending_count++] =
            (struct boot_pending){.fd = fd, .since_s = tess_clock_s()};
    for (int i = 0; i < door->pending_count; i++)
        if (door_read(door, &door->pending[i]))
            door->pending[kept++] = door->pending[i];
    door->pending_count = kept;
}

void tess__boot_door_close(struct boot_door *door)
{
    for (int i = 0; i < door->pending_count; i++)
        close(door->pending[i].fd);
    tess__boot_unlisten(&door->listener);
}
