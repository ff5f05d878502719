/*
 * How two ranks come to be connected: one of them calls the other, which listens, when it first has
 * a message for it. Nothing here waits: a call goes on when epoll reports something.
 *
 *     caller      connects twice; each time           <--   listener   challenge
 *                 answer: magic, which, both ranks, proof    -->
 *                                                     <--              welcome: which, rank, proof
 *
 * Both prove that they have the secret of the job and of this meeting (boot_secret.h): a connection
 * that does not, or is silent for a while, is closed and does no harm. Where both ranks call at
 * once the call of the higher one counts: it answers the other one's with TCP_BUSY.
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
#define CALL_HELLO_S      1.0 /* after which a connection without an answer is closed */

struct call_greeting {
    uint64_t magic;
    uint32_t which; /* TCP_WORDS or TCP_DATA */
    int32_t from, to;
    uint32_t zero[3];
};

_Static_assert(sizeof(struct call_greeting) == TESS_GREETING_BYTES,
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

/* Little, and before anything else: the system's buffer is empty, so that it takes all of it. */
static bool call_send(int fd, const void *bytes, size_t count)
{
    return send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)count;
}

/* Read what is waited for. False: not all of it is there; *over_out: nor will it be. */
static bool call_read(int fd, void *bytes, size_t whole, size_t *got, bool *over_out)
{
    const ssize_t count = recv(fd, (char *)bytes + *got, whole - *got, MSG_DONTWAIT);

    *over_out = count == 0 || (count < 0 && !call_again(errno));
    *got += count > 0 ? (size_t)count : 0;
    return *got == whole;
}

/* ---- peers ----------------------------------------------------------------------------------- */

struct tcp_peer *tess__tcp_peer(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    if (peer != NULL)
        return peer;
    struct tcp_peer ***page = &tcp->page[r / TCP_PAGE];
    if (*page == NULL)
        *page = calloc(TCP_PAGE, sizeof(**page));
    peer = *page != NULL ? calloc(1, sizeof(*peer)) : NULL;
    if (peer == NULL)
        return NULL;
    peer->fd[TCP_WORDS] = peer->fd[TCP_DATA] = -1;
    TAILQ_INIT(&peer->sends);
    TAILQ_INIT(&peer->sending);
    TAILQ_INIT(&peer->expects);
    TAILQ_INIT(&peer->arrived);
    peer->rank = r;
    tess__tcp_near_meet(tcp, peer);
    tess__tcp_near_take_table(tcp);
    (*page)[r % TCP_PAGE] = peer;
    return peer;
}

static void call_free(struct tcp_peer *peer)
{
    struct tcp_call *call = peer->call;

    peer->call = NULL;
    if (call == NULL)
        return;
    for (int which = 0; which < TCP_CONNECTIONS; which++)
        call_hang_up(&call->of[which].fd);
    if (call->found != NULL)
        freeaddrinfo(call->found);
    free(call);
}

/* This side's call for one of the connections has come to an end. */
static void call_end(struct tcp_peer *peer, int which)
{
    call_hang_up(&peer->call->of[which].fd);
    if (peer->call->of[TCP_WORDS].fd < 0 && peer->call->of[TCP_DATA].fd < 0)
        call_free(peer);
}

static void caller_drop(struct tcp *tcp, struct tcp_caller *caller)
{
    tcp->strangers++;
    tcp->caller_count--;
    call_hang_up(&caller->fd);
}

/* The one that has said nothing for longest; NULL: there is none. */
static struct tcp_caller *caller_oldest(struct tcp *tcp)
{
    struct tcp_caller *oldest = NULL;

    for (int i = 0; i < tcp->caller_room; i++)
        if (tcp->caller[i].fd >= 0 && (oldest == NULL || tcp->caller[i].since_s < oldest->since_s))
            oldest = &tcp->caller[i];
    return oldest;
}

/* Where no descriptor is left a caller that has said nothing gives its own, so that strangers do
 * not end the run; a rank tries again. False: that is not it, or there is none. */
static bool caller_yields(struct tcp *tcp, int error)
{
    struct tcp_caller *oldest = error == EMFILE || error == ENFILE ? caller_oldest(tcp) : NULL;

    if (oldest != NULL)
        caller_drop(tcp, oldest);
    return oldest != NULL;
}

static void call_open(struct tcp *tcp, int32_t r, int which, int fd, struct tcp_news *news)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    peer->met[which] = true;
    if (tcp->leaves && which == TCP_DATA) {
        close(fd);
        return;
    }
    call_tune(tcp, fd, which, true);
    peer->fd[which] = fd;
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
    const char *address = tess__tcp_table_address(tcp->table, r);
    const int32_t port = tess__tcp_table_port(tcp->table, r);
    /* Nobody listens there any more; else it may be the network. */
    const bool gone = error == ECONNREFUSED || error == ECONNRESET || error == EPIPE;

    call_free(tess__tcp_at(tcp, r));
    if (gone)
        call_fail(news, r, true, "rank %d (%s) cannot connect to it at %s, port %d: %s",
                  (int)transport->rank, tess__tcp_host_name(transport, transport->rank), address,
                  (int)port, why);
    else
        call_fail(news, r, false, "it cannot connect to rank %d (%s) at %s, port %d: %s", (int)r,
                  tess__tcp_host_name(transport, r), address, (int)port, why);
}

/* Try the addresses from `at` on until one does not fail at once. */
static void call_connect(struct tcp *tcp, int32_t r, int which, struct addrinfo *at, int error,
                         struct tcp_news *news)
{
    struct tcp_calling *calling = &tess__tcp_at(tcp, r)->call->of[which];
    const uint64_t tag = TCP_TAG_CALL | ((uint64_t)r * TCP_CONNECTIONS + (uint64_t)which);
    char text[200];

    for (; at != NULL; at = at->ai_next) {
        int fd;
        do
            fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        while (fd < 0 && caller_yields(tcp, errno));
        if (fd < 0) {
            error = errno;
            continue;
        }
        call_tune(tcp, fd, which, false);
        const bool done = connect(fd, at->ai_addr, at->ai_addrlen) == 0;
        error = done ? 0 : errno;
        if (done || error == EINPROGRESS) {
            calling->at = at;
            calling->fd = fd;
            calling->got = 0;
            calling->step = done ? TCP_CHALLENGED : TCP_CONNECTS;
            call_watch(tcp, EPOLL_CTL_ADD, fd, EPOLLIN | (done ? 0u : (uint32_t)EPOLLOUT), tag);
            return;
        }
        close(fd);
    }
    call_failed(tcp, r, error, call_error(error, text, sizeof(text)), news);
}

void tess__tcp_call(struct tcp *tcp, int32_t r, struct tcp_news *news)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    char service[16];

    peer->call = calloc(1, sizeof(*peer->call));
    if (peer->call == NULL) {
        call_fail(news, r, false, "it has no memory to connect to rank %d", (int)r);
        return;
    }
    peer->call->of[TCP_WORDS].fd = peer->call->of[TCP_DATA].fd = -1;
    snprintf(service, sizeof(service), "%d", (int)tess__tcp_table_port(tcp->table, r));
    const int error =
        getaddrinfo(tess__tcp_table_address(tcp->table, r), service, &hints, &peer->call->found);
    if (error != 0) {
        call_failed(tcp, r, 0, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error), news);
        return;
    }
    for (int which = 0; which < TCP_CONNECTIONS && !news->failed; which++)
        call_connect(tcp, r, which, peer->call->found, 0, news);
}

/* It has hung up: that of a rank that has no place for callers is no refusal. */
static void call_again_later(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_call *call = tess__tcp_at(tcp, r)->call;

    call_hang_up(&call->of[which].fd);
    if (++call->tries > CALL_TRIES)
        call_failed(tcp, r, ECONNRESET, "it does not answer", news);
    else
        call_connect(tcp, r, which, call->found, 0, news);
}

static void call_answer(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_calling *calling = &tess__tcp_at(tcp, r)->call->of[which];
    const struct call_greeting greeting = {
        .magic = CALL_MAGIC, .which = (uint32_t)which, .from = tcp->transport.rank, .to = r};
    unsigned char bytes[TESS_GREETING_BYTES];

    memcpy(bytes, &greeting, sizeof(bytes));
    calling->step = TCP_WELCOMED;
    calling->got = 0;
    if (!tess_secret_prove(&tcp->secret, &calling->challenge, bytes, &calling->answer))
        call_failed(tcp, r, 0, "what listens there is no rank of this job", news);
    else if (!call_send(calling->fd, &calling->answer, sizeof(calling->answer)))
        call_again_later(tcp, r, which, news);
}

static void call_welcomed(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    struct tcp_calling *calling = &peer->call->of[which];
    const struct tcp_welcome *welcome = &calling->welcome;
    const int fd = calling->fd;

    if (!tess_secret_confirm(&tcp->secret, &calling->challenge, &calling->answer, welcome->proof) ||
        welcome->rank != r || (welcome->which & ~TCP_BUSY) != (uint32_t)which) {
        call_failed(tcp, r, 0, "what listens there is no rank of this job", news);
        return;
    }
    if ((welcome->which & TCP_BUSY) == 0) {
        calling->fd = -1;
        call_open(tcp, r, which, fd, news);
    } else {
        peer->calls = true;
    }
    call_end(peer, which);
}

/* Is it connected? */
static void call_connected(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_calling *calling = &tess__tcp_at(tcp, r)->call->of[which];
    int error = 0;
    socklen_t size = sizeof(error);

    if (getsockopt(calling->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error != 0) {
        call_hang_up(&calling->fd);
        call_connect(tcp, r, which, calling->at->ai_next, error, news);
        return;
    }
    calling->step = TCP_CHALLENGED;
    call_watch(tcp, EPOLL_CTL_MOD, calling->fd, EPOLLIN,
               TCP_TAG_CALL | ((uint64_t)r * TCP_CONNECTIONS + (uint64_t)which));
}

void tess__tcp_call_event(struct tcp *tcp, int32_t r, int which, struct tcp_news *news)
{
    struct tcp_call *call = tess__tcp_at(tcp, r) != NULL ? tess__tcp_at(tcp, r)->call : NULL;
    struct tcp_calling *calling = call != NULL ? &call->of[which] : NULL;
    bool over = false;

    if (calling == NULL || calling->fd < 0)
        return;
    if (calling->step == TCP_CONNECTS) {
        call_connected(tcp, r, which, news);
        return;
    }
    const bool first = calling->step == TCP_CHALLENGED;
    void *const bytes = first ? (void *)&calling->challenge : &calling->welcome;
    const size_t whole = first ? sizeof(calling->challenge) : sizeof(calling->welcome);
    if (call_read(calling->fd, bytes, whole, &calling->got, &over))
        (first ? call_answer : call_welcomed)(tcp, r, which, news);
    else if (over)
        call_again_later(tcp, r, which, news);
}

/* ---- from others ----------------------------------------------------------------------------- */

/* Twice as many places, if there is memory; at most for all ranks at once. */
static bool caller_grow(struct tcp *tcp)
{
    const int most = tcp->transport.rank_count * TCP_CONNECTIONS + TCP_CALLERS;
    const int room = 2 * tcp->caller_room < most ? 2 * tcp->caller_room : most;
    struct tcp_caller *grown =
        room > tcp->caller_room ? realloc(tcp->caller, (size_t)room * sizeof(*grown)) : NULL;

    if (grown == NULL)
        return false;
    for (int i = tcp->caller_room; i < room; i++)
        grown[i].fd = -1;
    tcp->caller = grown;
    tcp->caller_room = room;
    return true;
}

/* A place for a caller: where there is none, that of the one which has said nothing for longest. */
static struct tcp_caller *caller_place(struct tcp *tcp)
{
    for (int i = 0; i < tcp->caller_room; i++)
        if (tcp->caller[i].fd < 0)
            return &tcp->caller[i];
    const int next = tcp->caller_room;
    if (caller_grow(tcp))
        return &tcp->caller[next];
    struct tcp_caller *oldest = caller_oldest(tcp);
    caller_drop(tcp, oldest);
    return oldest;
}

/* Of both sides' calls the higher rank's counts. */
static bool caller_is_welcome(struct tcp *tcp, const struct call_greeting *greeting)
{
    struct tcp_peer *peer = tess__tcp_peer(tcp, greeting->from);

    if (peer == NULL || peer->met[greeting->which])
        return false;
    if (peer->call == NULL)
        return true;
    if (tcp->transport.rank > greeting->from)
        return false;
    call_end(peer, (int)greeting->which);
    return true;
}

static void caller_greet(struct tcp *tcp, struct tcp_caller *caller, struct tcp_news *news)
{
    struct call_greeting greeting;
    struct tcp_welcome welcome = {.rank = tcp->transport.rank};

    memcpy(&greeting, caller->answer.greeting, sizeof(greeting));
    if (!tess_secret_check(&tcp->secret, &caller->challenge, &caller->answer, welcome.proof) ||
        greeting.magic != CALL_MAGIC || greeting.which >= TCP_CONNECTIONS || greeting.from < 0 ||
        greeting.from >= tcp->transport.rank_count || greeting.from == tcp->transport.rank ||
        greeting.to != tcp->transport.rank) {
        caller_drop(tcp, caller);
        return;
    }
    const bool taken = caller_is_welcome(tcp, &greeting);
    const int fd = caller->fd;
    caller->fd = -1;
    tcp->caller_count--;
    welcome.which = greeting.which | (taken ? 0 : TCP_BUSY);
    if (call_send(fd, &welcome, sizeof(welcome)) && taken)
        call_open(tcp, greeting.from, (int)greeting.which, fd, news);
    else
        close(fd);
}

void tess__tcp_caller_event(struct tcp *tcp, int number, struct tcp_news *news)
{
    struct tcp_caller *caller = &tcp->caller[number];
    bool over = false;

    if (caller->fd < 0)
        return;
    if (call_read(caller->fd, &caller->answer, sizeof(caller->answer), &caller->got, &over))
        caller_greet(tcp, caller, news);
    else if (over)
        caller_drop(tcp, caller);
}

/* One connection; where there are more epoll says so again. */
void tess__tcp_door_event(struct tcp *tcp, int door, struct tcp_news *news)
{
    char text[200];
    int fd;

    do
        fd = accept4(tcp->listener.fd[door], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && caller_yields(tcp, errno));
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
    if (!tess_secret_challenge(&caller->challenge) ||
        !call_send(fd, &caller->challenge, sizeof(caller->challenge)))
        caller_drop(tcp, caller);
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
    for (int32_t r = 0; tcp->page != NULL && r < tcp->transport.rank_count; r++)
        if (tess__tcp_at(tcp, r) != NULL)
            call_free(tess__tcp_at(tcp, r));
    tess__boot_unlisten(&tcp->listener);
}
