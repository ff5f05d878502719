/*
 * How two ranks come to be connected: one of them calls the other, which listens, when it first has
 * a message for it. Nothing here waits: a call goes on when epoll reports something.
 *
 *     caller      connects twice; each time   hello: magic, which, rank, word   -->
 *     listener                            <-- welcome: magic, which, rank, word
 *
 * Both show the word of this job, which rank 0 has drawn: a connection that does not, or shows
 * nothing for a while, is closed and does no harm. Where both call at once the call of the higher
 * rank counts: it answers the other one's with TCP_BUSY.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALL_MAGIC UINT64_C(0x70637470746d6574) /* "temtptcp" */
#define TCP_BUSY   0x100u                       /* in a welcome: this call is dropped */
/* Of what is written and not sent yet the system keeps as much as a slow link takes in a moment:
 * enough that a fast one does not run dry. */
#define CALL_UNSENT_BYTES (256 << 10)
#define CALL_TRIES        100 /* of a rank that hangs up without an answer */
#define CALL_HELLO_S      5.0 /* after which a connection without a hello is closed */

struct call_hello {
    uint64_t magic;
    uint32_t which; /* TCP_WORDS or TCP_DATA */
    int32_t rank;
    uint64_t word[2];
};

_Static_assert(sizeof(struct call_hello) == TCP_HELLO_BYTES,
               "what goes over the wire has no holes");

/* ---- helpers --------------------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) static void call_fail(struct tcp_news *news, int32_t peer,
                                                            bool gone, const char *format, ...)
{
    va_list arguments;

    news->peer = peer;
    news->failed = true;
    news->gone = gone;
    va_start(arguments, format);
    vsnprintf(news->why, sizeof(news->why), format, arguments);
    va_end(arguments);
}

/* strerror, and what to do where it is about this process. */
static const char *call_error(int error, char *text, size_t text_bytes)
{
    struct rlimit limit = {0, 0};

    if (error != EMFILE)
        return strerror(error);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    snprintf(text, text_bytes,
             "it may have %llu open files at a time, and has 2 for each rank that it exchanges "
             "messages with: raise `ulimit -Hn`",
             (unsigned long long)limit.rlim_cur);
    return text;
}

static bool call_again(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static void call_watch(struct tcp *tcp, int operation, int fd, uint32_t events, uint64_t tag)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};

    (void)epoll_ctl(tcp->epoll, operation, fd, &event); /* memory alone could be missing */
}

static void call_hang_up(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/*
 * Words are few, so that they are acknowledged at once by any host that is there, whatever its
 * ranks do: that they are not means that it has gone. Data may lie for as long as a rank computes,
 * once it is connected.
 */
static void call_tune(const struct tcp *tcp, int fd, int which, bool open)
{
    const int yes = 1, unsent = CALL_UNSENT_BYTES;
    const double silent_s = tcp->timeout_s / 2;
    const int silent_ms = silent_s > 1e6 ? 1000000000 : silent_s < 1 ? 1000 : (int)(silent_s * 1e3);
    const int idle_s = silent_ms / 4000 > 0 ? silent_ms / 4000 : 1;
    const int probes = silent_ms / 1000 / idle_s > 0 ? silent_ms / 1000 / idle_s : 1;
    const int patience_ms = which == TCP_DATA && open ? 0 : silent_ms;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
    if (which == TCP_DATA) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
        return;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* Before anything else is sent: the system's buffer is empty, so that it takes this. A secret of
 * the job is to be proved here and in call_is_ours, and nowhere else. */
static bool call_say(const struct tcp *tcp, int fd, uint32_t which)
{
    const struct call_hello hello = {.magic = CALL_MAGIC,
                                     .which = which,
                                     .rank = tcp->transport.rank,
                                     .word = {tcp->word[0], tcp->word[1]}};

    return send(fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(hello);
}

static bool call_is_ours(const struct tcp *tcp, const struct call_hello *hello)
{
    return hello->magic == CALL_MAGIC && memcmp(hello->word, tcp->word, sizeof(hello->word)) == 0;
}

/* Read a hello or a welcome. False: not all of it is there; *over_out: nor will it be. */
static bool call_read(int fd, unsigned char bytes[TCP_HELLO_BYTES], size_t *got, bool *over_out)
{
    const ssize_t count = recv(fd, bytes + *got, TCP_HELLO_BYTES - *got, MSG_DONTWAIT);

    *over_out = count == 0 || (count < 0 && !call_again(errno));
    *got += count > 0 ? (size_t)count : 0;
    return *got == TCP_HELLO_BYTES;
}

/* ---- peers ----------------------------------------------------------------------------------- */

struct tcp_peer *tess__tcp_peer(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tcp->peer[r];

    if (peer != NULL)
        return peer;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    peer->fd[TCP_WORDS] = peer->fd[TCP_DATA] = -1;
    TAILQ_INIT(&peer->sends);
    TAILQ_INIT(&peer->sending);
    TAILQ_INIT(&peer->receives);
    tcp->peer[r] = peer;
    return peer;
}

static void call_free(struct tcp_peer *peer)
{
    struct tcp_call *call = peer->call;

    peer->call = NULL;
    if (call == NULL)
        return;
    for (int which = 0; which < TCP_CONNECTIONS; which++)
        call_hang_up(&call->fd[which]);
    freeaddrinfo(call->found);
    free(call);
}

/* This side's call for one of the connections has come to an end. */
static void call_end(struct tcp_peer *peer, int which)
{
    call_hang_up(&peer->call->fd[which]);
    if (peer->call->fd[TCP_WORDS] < 0 && peer->call->fd[TCP_DATA] < 0)
        call_free(peer);
}

static void call_open(struct tcp *tcp, int32_t r, int which, int fd, struct tcp_news *news)
{
    struct tcp_peer *peer = tcp->peer[r];

    call_tune(tcp, fd, which, true);
    peer->fd[which] = fd;
    peer->met[which] = true;
    call_watch(tcp, EPOLL_CTL_MOD, fd, EPOLLIN, (uint64_t)r * TCP_CONNECTIONS + (uint64_t)which);
    news->peer = r;
    news->which = which;
    news->open = true;
}

/* ---- to others ------------------------------------------------------------------------------- */

static void call_failed(struct tcp *tcp, int32_t r, int error, const char *why,
                        struct tcp_news *news)
{
    const struct tess_transport *transport = &tcp->transport;
    /* Nobody listens there any more; else it may be the network. */
    const bool gone = error == ECONNREFUSED || error == ECONNRESET || error == EPIPE;

    call_free(tcp->peer[r]);
    if (gone)
        call_fail(news, r, true, "rank %d (%s) cannot connect to it at %s, port %d: %s",
                  (int)transport->rank, transport->host_name[transport->rank],
                  tcp->place[tcp->place_of[r]].address, (int)tcp->port[r], why);
    else
        call_fail(news, r, false, "it cannot connect to rank %d (%s) at %s, port %d: %s", (int)r,
                  transport->host_name[r], tcp->place[tcp->place_of[r]].address, (int)tcp->port[r],
                  why);
}

/* Try the addresses from `at` on until one does not fail at once. */
static void call_connect(struct tcp *tcp, int32_t r, int which, struct addrinfo *at, int error,
                         struct tcp_news *news)
{
    struct tcp_call *call = tcp->peer[r]->call;
    const uint64_t tag = TCP_TAG_CALL | ((uint64_t)r * TCP_CONNECTIONS + (uint64_t)which);
    char text[200];

    for (; at != NULL; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            error = errno;
            continue;
        }
        call_tune(tcp, fd, which, false);
        const bool done = connect(fd, at->ai_addr, at->ai_addrlen) == 0;
        error = done ? 0 : errno;
        if (done || error == EINPROGRESS) {
            call->at[which] = at;
            call->fd[which] = fd;
            call->got[which] = 0;
            call->greeted[which] = done && call_say(tcp, fd, (uint32_t)which);
            call_watch(tcp, EPOLL_CTL_ADD, fd,
                       EPOLLIN | (call->greeted[which] ? 0u : (uint32_t)EPOLLOUT), tag);
            return;
        }
        close(fd);
    }
    call_failed(tcp, r, error, call_error(error, text, sizeof(text)), news);
}

void tess__tcp_call(struct tcp *tcp, int32_t r, struct tcp_news *news)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct tcp_peer *peer = tcp->peer[r];
    char service[16];

    peer->call = calloc(1, sizeof(*peer->call));
    if (peer->call == NULL) {
        call_fail(news, r, false, "it has no memory to connect to rank %d", (int)r);
        return;
    }
    peer->call->fd[TCP_WORDS] = peer->call->fd[TCP_DATA] = -1;
    snprintf(service, sizeof(service), "%d", (int)tcp->port[r]);
    const int error =
        getaddrinfo(tcp->place[tcp->place_of[r]].address, service, &hints, &peer->call->found);
    if (error != 0) {
        call_failed(tcp, r, 0, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error), news);
        return;
    }
    for (int which = 0; which < TCP_CONNECTIONS && !news->failed; which++)
        call_connect(tcp, r, which, peer->call->found, 0, news);
}

/* Its answer is there, or it has hung up. */
static void call_answered(struct tcp *tcp, int32_t r, int which, bool over, struct tcp_news *news)
{
    struct tcp_peer *peer = tcp->peer[r];
    struct tcp_call *call = peer->call;
    struct call_hello welcome;
    int fd = call->fd[which];

    if (over) {
        call_hang_up(&call->fd[which]);
        if (++call->tries > CALL_TRIES)
            call_failed(tcp, r, ECONNRESET, "it does not answer", news);
        else
            call_connect(tcp, r, which, call->found, 0, news);
        return;
    }
    memcpy(&welcome, call->welcome[which], sizeof(welcome));
    if (!call_is_ours(tcp, &welcome) || welcome.rank != r ||
        (welcome.which & ~TCP_BUSY) != (uint32_t)which) {
        call_failed(tcp, r, 0, "what listens there is no rank of this job", news);
        return;
    }
    if ((welcome.which & TCP_BUSY) == 0) {
        call->fd[which] = -1;
        call_open(tcp, r, which, fd, news);
    } else {
        peer->calls = true;
    }
    call_end(peer, which);
}

void tess__tcp_call_event(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_call *call = tcp->peer[r] != NULL ? tcp->peer[r]->call : NULL;
    bool over = false;

    if (call == NULL || call->fd[which] < 0)
        return;
    if (call->greeted[which]) {
        if (call_read(call->fd[which], call->welcome[which], &call->got[which], &over) || over)
            call_answered(tcp, r, which, over, news);
        return;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(call->fd[which], SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error == 0 && !call_say(tcp, call->fd[which], (uint32_t)which))
        error = errno;
    if (error == 0) {
        call->greeted[which] = true;
        call_watch(tcp, EPOLL_CTL_MOD, call->fd[which], EPOLLIN,
                   TCP_TAG_CALL | ((uint64_t)r * TCP_CONNECTIONS + (uint64_t)which));
    } else if (error != ENOTCONN && !call_again(error)) {
        call_hang_up(&call->fd[which]);
        call_connect(tcp, r, which, call->at[which]->ai_next, error, news);
    }
}

/* ---- from others ----------------------------------------------------------------------------- */

static void caller_drop(struct tcp *tcp, struct tcp_caller *caller)
{
    tcp->strangers++;
    tcp->caller_count--;
    call_hang_up(&caller->fd);
}

/* A place for a caller: where there is none, that of the one which has said nothing for longest. */
static struct tcp_caller *caller_place(struct tcp *tcp)
{
    struct tcp_caller *oldest = &tcp->caller[0];

    for (int i = 0; i < tcp->caller_room; i++) {
        struct tcp_caller *caller = &tcp->caller[i];
        if (caller->fd < 0)
            return caller;
        oldest = caller->since_s < oldest->since_s ? caller : oldest;
    }
    caller_drop(tcp, oldest);
    return oldest;
}

/* Of both sides' calls the higher rank's counts. */
static bool caller_is_welcome(struct tcp *tcp, const struct call_hello *hello)
{
    struct tcp_peer *peer = tess__tcp_peer(tcp, hello->rank);

    if (peer == NULL || peer->met[hello->which])
        return false;
    if (peer->call == NULL)
        return true;
    if (tcp->transport.rank > hello->rank)
        return false;
    call_end(peer, (int)hello->which);
    return true;
}

static void caller_greet(struct tcp *tcp, struct tcp_caller *caller, struct tcp_news *news)
{
    struct call_hello hello;

    memcpy(&hello, caller->hello, sizeof(hello));
    if (!call_is_ours(tcp, &hello) || hello.which >= TCP_CONNECTIONS || hello.rank < 0 ||
        hello.rank >= tcp->transport.rank_count || hello.rank == tcp->transport.rank) {
        caller_drop(tcp, caller);
        return;
    }
    const bool welcome = caller_is_welcome(tcp, &hello);
    const int fd = caller->fd;
    caller->fd = -1;
    tcp->caller_count--;
    if (call_say(tcp, fd, hello.which | (welcome ? 0 : TCP_BUSY)) && welcome)
        call_open(tcp, hello.rank, (int)hello.which, fd, news);
    else
        close(fd);
}

void tess__tcp_caller_event(struct tcp *tcp, int number, struct tcp_news *news)
{
    struct tcp_caller *caller = &tcp->caller[number];
    bool over = false;

    if (caller->fd < 0)
        return;
    if (call_read(caller->fd, caller->hello, &caller->got, &over))
        caller_greet(tcp, caller, news);
    else if (over)
        caller_drop(tcp, caller);
}

/* One connection; where there are more epoll says so again. */
void tess__tcp_door_event(struct tcp *tcp, int door, struct tcp_news *news)
{
    char text[200];
    const int fd = accept4(tcp->listener.fd[door], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            call_fail(news, tcp->transport.rank, false, "it cannot take a connection: %s",
                      call_error(errno, text, sizeof(text)));
        return;
    }
    struct tcp_caller *caller = caller_place(tcp);
    const int number = (int)(caller - tcp->caller);
    *caller = (struct tcp_caller){.fd = fd, .since_s = tess_clock_s()};
    tcp->caller_count++;
    call_watch(tcp, EPOLL_CTL_ADD, fd, EPOLLIN, TCP_TAG_CALLER | (uint64_t)number);
    tess__tcp_caller_event(tcp, number, news); /* its hello is there, mostly */
}

void tess__tcp_callers_late(struct tcp *tcp)
{
    const double begin_s = tess_clock_s() - CALL_HELLO_S;

    for (int i = 0; i < tcp->caller_room; i++)
        if (tcp->caller[i].fd >= 0 && tcp->caller[i].since_s < begin_s)
            caller_drop(tcp, &tcp->caller[i]);
}

void tess__tcp_calls_close(struct tcp *tcp)
{
    for (int i = 0; i < tcp->caller_room; i++)
        call_hang_up(&tcp->caller[i].fd);
    for (int32_t r = 0; tcp->peer != NULL && r < tcp->transport.rank_count; r++)
        if (tcp->peer[r] != NULL)
            call_free(tcp->peer[r]);
    tess__boot_unlisten(&tcp->listener);
}
