/*
 * TCP with time limits, over IPv4 and IPv6. Sockets do not block; waits use poll() with a
 * deadline. There are no ranks here.
 */
#include "comm/boot/boot_socket.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* One address that does not answer must not use up the time for the others. */
#define SOCKET_CONNECT_S 3.0

static int socket_left_ms(double limit_s)
{
    double left_s = limit_s - tess_clock_s();
    return left_s <= 0 ? 0 : left_s > 1e6 ? 1000000000 : (int)ceil(left_s * 1e3);
}

/* Wait for `events`; false when the time is up. */
static bool socket_wait(int fd, short events, double limit_s)
{
    for (;;) {
        struct pollfd watch = {.fd = fd, .events = events};
        int left_ms = socket_left_ms(limit_s);
        int count = poll(&watch, 1, left_ms);
        if (count > 0)
            return true;
        if ((count == 0 && left_ms == 0) || (count < 0 && errno != EINTR))
            return false;
    }
}

bool tess__boot_ready(int fd)
{
    return socket_wait(fd, POLLIN, 0);
}

bool tess__boot_wait_either(int fd, int other, double limit_s)
{
    struct pollfd watch[] = {{.fd = fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    int left_ms, count;
    do {
        left_ms = socket_left_ms(limit_s);
        count = poll(watch, 2, left_ms);
    } while ((count == 0 && left_ms > 0) || (count < 0 && errno == EINTR));
    return count > 0;
}

/* Descriptors that a process has beside its connections, and those that strangers may take. */
#define SOCKET_OTHERS    64
#define SOCKET_STRANGERS 1280

enum tess_status tess__boot_need_files(int64_t count, const char *what)
{
    struct rlimit limit;
    const rlim_t least = (rlim_t)(count + SOCKET_OTHERS), wanted = least + SOCKET_STRANGERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return TESS_OK;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if ((setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before) >= least)
        return TESS_OK;
    TESS_FAIL(
        TESS_ERR_USAGE,
        "%s needs %lld connections, and this process may have %llu open files (RLIMIT_NOFILE, "
        "hard limit %llu): raise the hard limit to %llu (ulimit -Hn, LimitNOFILE= of "
        "systemd)",
        what, (long long)count, (unsigned long long)before, (unsigned long long)limit.rlim_max,
        (unsigned long long)wanted);
}

static enum tess_status socket_resolve(const char *address, int32_t port, struct addrinfo **out,
                                       char *why, size_t why_bytes)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[16];
    snprintf(service, sizeof(service), "%d", (int)port);
    int error = getaddrinfo(address, service, &hints, out);
    if (error == 0)
        return TESS_OK;
    snprintf(why, why_bytes, "%s", error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return TESS_ERR_COMM;
}

/* Does the address mean this host alone? A host's own name may be found as 127.0.1.1 on itself and
 * as its real address on others, so only loopback addresses count. */
bool tess__boot_is_loopback(const char *address)
{
    struct in_addr four;
    struct in6_addr six;
    if (strcmp(address, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, address, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

/* -1 with errno. `both`: an IPv6 socket that takes IPv4 too. */
static int socket_listen(const struct sockaddr *name, socklen_t length, bool both)
{
    int yes = 1, only = !both;
    int fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if ((name->sa_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) != 0) ||
        bind(fd, name, length) != 0 || listen(fd, SOMAXCONN) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* At the number of an interface of this host; -1 with errno, EADDRNOTAVAIL: it is none. */
static int socket_listen_number(const char *address, int32_t port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof(service), "%d", (int)port);
    if (getaddrinfo(address, service, &hints, &found) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    const int fd = socket_listen(found->ai_addr, found->ai_addrlen, false);
    const int error = errno;
    freeaddrinfo(found);
    errno = error;
    return fd;
}

static int socket_listen_all(int32_t port)
{
    const struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    const struct sockaddr_in four = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)port),
                                     .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket_listen((const struct sockaddr *)&six, sizeof(six), true);
    if (fd >= 0 || errno == EADDRINUSE || errno == EACCES)
        return fd;
    return socket_listen((const struct sockaddr *)&four, sizeof(four), false); /* no IPv6 here */
}

static int socket_listen_loopback(const char *address, int32_t port, struct boot_listener *listener)
{
    struct addrinfo *found = NULL;
    char why[BOOT_WHY_BYTES];
    int error = 0;
    if (socket_resolve(address, port, &found, why, sizeof(why)) != TESS_OK)
        return EADDRNOTAVAIL;
    for (struct addrinfo *at = found; at != NULL && listener->count < BOOT_LISTEN_MAX;
         at = at->ai_next) {
        int fd = socket_listen(at->ai_addr, at->ai_addrlen, false);
        if (fd >= 0)
            listener->fd[listener->count++] = fd;
        else if (error == 0 || errno == EADDRINUSE)
            error = errno;
    }
    freeaddrinfo(found);
    /* One of several families may be missing here; a port in use is an error. */
    return listener->count > 0 && error != EADDRINUSE ? 0 : error;
}

int tess__boot_try_listen(const char *address, int32_t port, struct boot_listener *listener_out)
{
    struct boot_listener listener = {.count = 0};
    int error = 0;
    if (tess__boot_is_loopback(address)) {
        error = socket_listen_loopback(address, port, &listener);
    } else {
        listener.fd[0] = socket_listen_number(address, port);
        if (listener.fd[0] < 0 && errno == EADDRNOTAVAIL)
            listener.fd[0] = socket_listen_all(port);
        error = listener.fd[0] < 0 ? errno : 0;
        listener.count = error == 0;
    }
    if (error != 0)
        tess__boot_unlisten(&listener);
    *listener_out = listener;
    return error;
}

enum tess_status tess__boot_listen(const char *address, int32_t port,
                                   struct boot_listener *listener_out)
{
    const int error = tess__boot_try_listen(address, port, listener_out);
    if (error != 0)
        TESS_FAIL(
            TESS_ERR_COMM, "rank 0 cannot listen at %s, port %d: %s%s", address, (int)port,
            strerror(error),
            error == EADDRINUSE
                ? "; another program, or a job that has not ended, has it: choose another port"
                : "");
    return TESS_OK;
}

int32_t tess__boot_port(const struct boot_listener *listener)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof(name);
    if (listener->count == 0 ||
        getsockname(listener->fd[0], (struct sockaddr *)&name, &length) != 0)
        return 0;
    return ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                            : ((struct sockaddr_in *)&name)->sin_port);
}

void tess__boot_unlisten(struct boot_listener *listener)
{
    for (int i = 0; i < listener->count; i++)
        close(listener->fd[i]);
    listener->count = 0;
}

static void socket_no_delay(int fd)
{
    int yes = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

void tess__boot_keep_alive(int fd, double timeout_s)
{
    const int one = 1, times = timeout_s > 4 ? (int)(timeout_s / 2) : 2;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

int tess__boot_accept(const struct boot_listener *listener)
{
    for (int i = 0; i < listener->count; i++) {
        int fd = accept4(listener->fd[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            socket_no_delay(fd);
            return fd;
        }
    }
    return -1;
}

static int socket_connect(const struct addrinfo *to, double limit_s)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof(error);
    if (fd < 0)
        return -1;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        if (errno != EINPROGRESS)
            error = errno;
        else if (!socket_wait(fd, POLLOUT, limit_s))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
    }
    if (error == 0) {
        socket_no_delay(fd);
        return fd;
    }
    close(fd);
    errno = error;
    return -1;
}

int tess__boot_connect(const char *address, int32_t port, double limit_s, char *why,
                       size_t why_bytes)
{
    struct addrinfo *found = NULL;
    int fd = -1;
    if (socket_resolve(address, port, &found, why, why_bytes) != TESS_OK)
        return -1;
    for (struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        double own_s = tess_clock_s() + SOCKET_CONNECT_S;
        fd = socket_connect(at, own_s < limit_s ? own_s : limit_s);
        if (fd < 0)
            snprintf(why, why_bytes, "%s", strerror(errno));
    }
    freeaddrinfo(found);
    return fd;
}

static bool socket_move(int fd, char *bytes, size_t count, bool sends, double limit_s, char *why,
                        size_t why_bytes)
{
    const char *reason = NULL;
    while (count > 0 && reason == NULL) {
        const ssize_t moved = sends ? send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : recv(fd, bytes, count, MSG_DONTWAIT);
        if (moved > 0) {
            bytes += moved;
            count -= (size_t)moved;
        } else if (moved == 0) {
            reason = "the connection was closed";
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!socket_wait(fd, sends ? POLLOUT : POLLIN, limit_s))
                reason = sends ? "it takes nothing" : "nothing came";
        } else if (errno != EINTR) {
            reason = strerror(errno);
        }
    }
    if (reason != NULL && why != NULL)
        snprintf(why, why_bytes, "%s", reason);
    return reason == NULL;
}

bool tess__boot_send(int fd, const void *bytes, size_t count, double limit_s, char *why,
                     size_t why_bytes)
{
    return socket_move(fd, (char *)bytes, count, true, limit_s, why, why_bytes);
}

bool tess__boot_receive(int fd, void *bytes, size_t count, double limit_s, char *why,
                        size_t why_bytes)
{
    return socket_move(fd, bytes, count, false, limit_s, why, why_bytes);
}

static void socket_text(int fd, bool peer, char text[BOOT_TEXT_BYTES])
{
    static const char mapped[] = "::ffff:";
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof(name);
    (void)(peer ? getpeername(fd, (struct sockaddr *)&name, &length)
                : getsockname(fd, (struct sockaddr *)&name, &length));
    if (getnameinfo((const struct sockaddr *)&name, length, text, BOOT_TEXT_BYTES, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(text, BOOT_TEXT_BYTES, "?");
    /* IPv4 through a socket of both kinds. */
    if (strncmp(text, mapped, sizeof(mapped) - 1) == 0)
        memmove(text, text + sizeof(mapped) - 1, strlen(text) - (sizeof(mapped) - 1) + 1);
}

void tess__boot_own_text(int fd, char text[BOOT_TEXT_BYTES])
{
    socket_text(fd, false, text);
}

void tess__boot_peer_text(int fd, char text[BOOT_TEXT_BYTES])
{
    socket_text(fd, true, text);
}
