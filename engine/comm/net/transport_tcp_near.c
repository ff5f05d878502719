/*
 * Ranks of one host: what would go over their sockets goes through shared memory. Each rank has an
 * inbox, a file in memory with a box for each rank that may send to it, and a bell, a pipe. Others
 * of the same user and PID namespace open both by /proc/PID/fd. A box has a ring of bytes in the
 * place of each connection:
 *
 *     inbox   head page | box of rank 0 | box of rank 1 | ...        sparse: unused boxes cost
 * nothing box     both rings' counters, bytes of words | bytes of data
 *
 * The sockets stay: by their end a rank learns that another one has gone, and they carry everything
 * where the system does not let a rank open what is another one's.
 *
 * What a peer has written is not trusted. The file cannot shrink (it is sealed), so that reading it
 * is safe; a side's own position is its own; the other one's is compared with the room of the ring.
 */
#include "comm/net/transport_tcp.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEAR_WORDS 2048u /* bytes of the ring of words; of rings all are powers of two */
/* Bytes of the ring of data: two or more chunks of a sum, within what the second-level cache holds;
 * of many ranks less, since a ring in use has all of its pages. */
#define NEAR_DATA_MOST  ((size_t)256 << 10)
#define NEAR_DATA_LEAST ((size_t)32 << 10)
#define NEAR_DATA_ALL   ((size_t)64 << 20)
/* To use the table of the host's first rank, which may come to it later than this one does. */
#define NEAR_TRIES 8
/* The other side goes on with the first of these while the next is copied. */
#define NEAR_PIECE ((size_t)32 << 10)

#define NEAR_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define NEAR_WHOLE (NEAR_SEALS | F_SEAL_WRITE) /* nothing in it changes any more */

/* The beginning of a box, on a page of its own. */
struct near_box {
    struct tcp_ring ring[TCP_CONNECTIONS];
    char words[NEAR_WORDS];
};

_Static_assert(sizeof(struct near_box) <= 4096, "a box begins with one page");

struct tcp_inbox {
    uint64_t mark;
    _Atomic int32_t table_fd; /* of the table, which is whole and stays as it is; 0: not there */
    _Alignas(64) _Atomic uint32_t sleeps; /* its rank waits for the bell */
};

/* This side of a ring. */
struct near_end {
    struct tcp_ring *ring;
    char *bytes;
    size_t room;
    uint64_t at; /* bytes that went by here */
};

struct tcp_boxes {
    struct near_box *in_box, *out_box;
    struct near_end in[TCP_CONNECTIONS], out[TCP_CONNECTIONS];
    struct tcp_inbox *inbox; /* the peer's; NULL: it cannot be opened, and sockets carry all */
    int bell;
};

static size_t near_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t near_data_bytes(const struct tcp *tcp)
{
    size_t bytes = NEAR_DATA_MOST;

    while (bytes > NEAR_DATA_LEAST && bytes * (size_t)tcp->transport.rank_count > NEAR_DATA_ALL)
        bytes /= 2;
    return bytes;
}

static size_t near_box_bytes(const struct tcp *tcp)
{
    const size_t page = near_page();

    return page + (near_data_bytes(tcp) + page - 1) / page * page;
}

static size_t near_inbox_bytes(const struct tcp *tcp)
{
    return near_page() + (size_t)tcp->transport.rank_count * near_box_bytes(tcp);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* NULL, and errno. */
static void *near_map(int fd, size_t at, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

    return memory != MAP_FAILED ? memory : NULL;
}

static bool near_make(struct tcp *tcp, uint64_t mark)
{
    tcp->inbox_fd = memfd_create("tessera-inbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (tcp->inbox_fd < 0)
        return false;
    errno = tess_file_resize(tcp->inbox_fd, near_inbox_bytes(tcp));
    if (errno != 0 || fcntl(tcp->inbox_fd, F_ADD_SEALS, NEAR_SEALS | F_SEAL_SEAL) != 0)
        return false;
    tcp->inbox = near_map(tcp->inbox_fd, 0, near_page());
    if (tcp->inbox != NULL)
        tcp->inbox->mark = mark;
    return tcp->inbox != NULL;
}

void tess__tcp_near_open(struct tcp *tcp, struct tcp_near *near_out)
{
    uint64_t mark;

    *near_out = (struct tcp_near){.pid = 0};
    if (getrandom(&mark, sizeof(mark), 0) != (ssize_t)sizeof(mark) || !near_make(tcp, mark)) {
        tess_log(TESS_LOG_DEBUG, "no memory shared with other ranks of this host: %s",
                 strerror(errno));
        return;
    }
    *near_out = (struct tcp_near){.mark = mark,
                                  .pid = (int32_t)getpid(),
                                  .inbox = (int32_t)tcp->inbox_fd,
                                  .bell = (int32_t)tcp->bell[1]};
}

/* A descriptor of another process, opened anew; -1, and errno. */
static int near_borrow(int32_t pid, int32_t fd, int flags)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)fd);
    return open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/* The head of an inbox and this rank's box in it. */
static bool near_map_peer(struct tcp *tcp, const struct tcp_near *card, int fd,
                          struct tcp_boxes *boxes)
{
    const size_t page = near_page(), box = near_box_bytes(tcp);
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat file;

    if (seals < 0 || fstat(fd, &file) != 0)
        return false;
    errno = EPROTO;
    if ((seals & NEAR_SEALS) != NEAR_SEALS || file.st_size != (off_t)near_inbox_bytes(tcp))
        return false;
    boxes->inbox = near_map(fd, 0, page);
    boxes->out_box = near_map(fd, page + (size_t)tcp->transport.rank * box, box);
    if (boxes->inbox == NULL || boxes->out_box == NULL)
        return false;
    errno = EPROTO;
    return boxes->inbox->mark == card->mark;
}

static bool near_open_peer(struct tcp *tcp, const struct tcp_near *card, struct tcp_boxes *boxes)
{
    struct stat file;
    const int fd = near_borrow(card->pid, card->inbox, O_RDWR);
    const bool mapped = fd >= 0 && near_map_peer(tcp, card, fd, boxes);
    const int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    if (!mapped)
        return false;
    /* With an end to read here, too: ringing for a rank that was killed raises no SIGPIPE. */
    boxes->bell = near_borrow(card->pid, card->bell, O_RDWR);
    return boxes->bell >= 0 && fstat(boxes->bell, &file) == 0 && S_ISFIFO(file.st_mode);
}

/* Both rings of a box. */
static void near_ends(const struct tcp *tcp, struct near_box *box, struct near_end *end)
{
    end[TCP_WORDS] =
        (struct near_end){.ring = &box->ring[TCP_WORDS], .bytes = box->words, .room = NEAR_WORDS};
    end[TCP_DATA] = (struct near_end){.ring = &box->ring[TCP_DATA],
                                      .bytes = (char *)box + near_page(),
                                      .room = near_data_bytes(tcp)};
}

static void near_unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

/* What goes to the peer goes over sockets. */
static void near_close_out(const struct tcp *tcp, struct tcp_boxes *boxes)
{
    near_unmap(boxes->inbox, near_page());
    near_unmap(boxes->out_box, near_box_bytes(tcp));
    if (boxes->bell >= 0)
        close(boxes->bell);
    boxes->inbox = NULL;
    boxes->out_box = NULL;
    boxes->bell = -1;
}

static int near_compare(const void *one, const void *other)
{
    const int32_t a = ((const struct tcp_near *)one)->rank;
    const int32_t b = ((const struct tcp_near *)other)->rank;

    return (a > b) - (a < b);
}

/* NULL: it shares no memory with this rank. */
static const struct tcp_near *near_find(const struct tcp *tcp, int32_t rank)
{
    const struct tcp_near wanted = {.rank = rank};

    return tcp->near_count == 0
               ? NULL
               : bsearch(&wanted, tcp->near, (size_t)tcp->near_count, sizeof(wanted), near_compare);
}

void tess__tcp_near_meet(struct tcp *tcp, struct tcp_peer *peer)
{
    const struct tcp_near *card = near_find(tcp, peer->rank);
    const size_t bytes = near_box_bytes(tcp);
    struct tcp_boxes *boxes = card != NULL && tcp->inbox != NULL ? calloc(1, sizeof(*boxes)) : NULL;

    if (boxes == NULL)
        return;
    boxes->bell = -1;
    boxes->in_box = near_map(tcp->inbox_fd, near_page() + (size_t)peer->rank * bytes, bytes);
    if (boxes->in_box == NULL) {
        free(boxes);
        return;
    }
    near_ends(tcp, boxes->in_box, boxes->in);
    if (near_open_peer(tcp, card, boxes)) {
        near_ends(tcp, boxes->out_box, boxes->out);
    } else {
        tess_log(TESS_LOG_DEBUG, "what goes to rank %d goes over sockets, not by memory: %s",
                 (int)peer->rank, strerror(errno));
        near_close_out(tcp, boxes);
    }
    peer->boxes = boxes;
    LIST_INSERT_HEAD(&tcp->near_peers, peer, near_link);
}

/* ---- the table ------------------------------------------------------------------------------- */

const char *tess__tcp_host_name(const struct tess_transport *transport, int32_t rank)
{
    const struct tcp_table *table = ((const struct tcp *)transport)->table;

    return table != NULL ? tess__tcp_table_name(table, rank) : "?";
}

void tess__tcp_table_drop(struct tcp *tcp)
{
    if (tcp->table_fd >= 0)
        close(tcp->table_fd);
    if (tcp->table_shared)
        near_unmap((void *)tcp->table, (size_t)tcp->table->bytes);
    else
        free((void *)tcp->table);
    tcp->table = NULL;
}

/* One that is the same as this rank's. */
static void near_use_table(struct tcp *tcp, int fd)
{
    const size_t bytes = (size_t)tcp->table->bytes;
    struct stat file;
    const int seals = fcntl(fd, F_GET_SEALS);
    void *table = seals >= 0 && (seals & NEAR_WHOLE) == NEAR_WHOLE && fstat(fd, &file) == 0 &&
                          file.st_size == (off_t)bytes
                      ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)
                      : MAP_FAILED;

    if (table == MAP_FAILED)
        return;
    if (memcmp(table, tcp->table, bytes) != 0) {
        near_unmap(table, bytes);
        return;
    }
    free((void *)tcp->table);
    tcp->table = table;
    tcp->table_shared = true;
    tcp->transport.host = tess__tcp_table_host(tcp->table);
}

void tess__tcp_near_give_table(struct tcp *tcp)
{
    const size_t bytes = (size_t)tcp->table->bytes;
    int fd = -1;

    if (tcp->near_count == 0 || tcp->near[0].rank != tcp->transport.rank)
        return;
    fd = memfd_create("tessera-table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return;
    if (tess_file_append(fd, tcp->table, bytes) != 0 || fcntl(fd, F_ADD_SEALS, NEAR_WHOLE) != 0) {
        close(fd);
        return;
    }
    tcp->table_fd = fd;
    near_use_table(tcp, fd);
    atomic_store_explicit(&tcp->inbox->table_fd, fd, memory_order_release);
}

/* The descriptor that the first rank's inbox names; 0: there is none yet, or no inbox. */
static int32_t near_table_fd(const struct tcp *tcp, const struct tcp_near *first)
{
    const int fd = near_borrow(first->pid, first->inbox, O_RDONLY);
    const int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    struct stat file;
    int32_t table_fd = 0;

    if (seals >= 0 && (seals & NEAR_SEALS) == NEAR_SEALS && fstat(fd, &file) == 0 &&
        file.st_size == (off_t)near_inbox_bytes(tcp)) {
        struct tcp_inbox *inbox = mmap(NULL, near_page(), PROT_READ, MAP_SHARED, fd, 0);
        if (inbox != MAP_FAILED) {
            if (inbox->mark == first->mark)
                table_fd = atomic_load_explicit(&inbox->table_fd, memory_order_acquire);
            near_unmap(inbox, near_page());
        }
    }
    if (fd >= 0)
        close(fd);
    return table_fd;
}

void tess__tcp_near_take_table(struct tcp *tcp)
{
    const struct tcp_near *first = tcp->near;

    if (tcp->near_count == 0 || first->rank == tcp->transport.rank || tcp->table_shared ||
        tcp->table_tries == NEAR_TRIES)
        return;
    tcp->table_tries++;
    const int32_t number = near_table_fd(tcp, first);
    const int fd = number > 0 ? near_borrow(first->pid, number, O_RDONLY) : -1;
    if (fd < 0)
        return;
    near_use_table(tcp, fd);
    close(fd);
}

void tess__tcp_near_close(struct tcp *tcp)
{
    struct tcp_peer *peer;

    while ((peer = LIST_FIRST(&tcp->near_peers)) != NULL) {
        LIST_REMOVE(peer, near_link);
        near_close_out(tcp, peer->boxes);
        near_unmap(peer->boxes->in_box, near_box_bytes(tcp));
        free(peer->boxes);
        peer->boxes = NULL;
    }
    near_unmap(tcp->inbox, near_page());
    if (tcp->inbox_fd >= 0)
        close(tcp->inbox_fd);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void near_wake(struct tcp_peer *peer)
{
    struct tcp_inbox *inbox = peer->boxes->inbox;

    if (inbox == NULL)
        peer->look = true;
    else if (atomic_load(&inbox->sleeps) != 0 && atomic_exchange(&inbox->sleeps, 0) != 0 &&
             write(peer->boxes->bell, "", 1) < 0) {
        /* It is full of rings already, or its rank has gone. */
    }
}

/* Copy between the ring at `at` and one part. */
static void near_copy(const struct near_end *end, uint64_t at, char *bytes, size_t count, bool out)
{
    const size_t from = (size_t)at & (end->room - 1), room = end->room - from;
    const size_t first = count < room ? count : room;

    memcpy(out ? end->bytes + from : bytes, out ? bytes : end->bytes + from, first);
    if (count > first)
        memcpy(out ? end->bytes : bytes + first, out ? bytes + first : end->bytes, count - first);
}

/* Bytes that the receiver may take, or that the sender may write; SIZE_MAX: the other side is none
 * of this program. */
static size_t near_free(const struct near_end *end, bool out)
{
    const uint64_t used =
        out ? end->at - atomic_load(&end->ring->taken) : atomic_load(&end->ring->written) - end->at;

    if (used > end->room)
        return SIZE_MAX;
    return out ? end->room - (size_t)used : (size_t)used;
}

/* The room that there is, or that the receiver is to say when there is some. */
static size_t near_room(struct near_end *end)
{
    const size_t room = near_free(end, true);

    if (room > 0)
        return room;
    atomic_store(&end->ring->wants_room, 1);
    return near_free(end, true);
}

static void near_moved(struct tcp_peer *peer, struct near_end *end, size_t count, bool out)
{
    struct tcp_ring *ring = end->ring;

    end->at += count;
    atomic_store(out ? &ring->written : &ring->taken, end->at);
    /* A sender that waits comes back once half of the ring is free. */
    if (out || (atomic_load(&ring->wants_room) != 0 && near_free(end, false) <= end->room / 2 &&
                atomic_exchange(&ring->wants_room, 0) != 0))
        near_wake(peer);
}

static ssize_t near_move(struct tcp_peer *peer, struct near_end *end, const struct iovec *part,
                         int parts, bool out)
{
    size_t room = out ? near_room(end) : near_free(end, false), total = 0;

    errno = room == SIZE_MAX ? EPROTO : EAGAIN;
    if (room == 0 || room == SIZE_MAX)
        return -1;
    for (int k = 0; k < parts; k++)
        for (size_t done = 0; done < part[k].iov_len;) {
            size_t count = part[k].iov_len - done;
            count = count < NEAR_PIECE ? count : NEAR_PIECE;
            count = count < room ? count : room;
            if (count == 0)
                return (ssize_t)total;
            near_copy(end, end->at, (char *)part[k].iov_base + done, count, out);
            near_moved(peer, end, count, out);
            done += count;
            total += count;
            room -= count;
        }
    return (ssize_t)total;
}

ssize_t tess__tcp_near_take(struct tcp_peer *peer, int which, const struct iovec *part, int parts)
{
    errno = EAGAIN;
    return peer->boxes != NULL ? near_move(peer, &peer->boxes->in[which], part, parts, false) : -1;
}

ssize_t tess__tcp_near_give(struct tcp_peer *peer, int which, const struct iovec *part, int parts)
{
    return near_move(peer, &peer->boxes->out[which], part, parts, true);
}

bool tess__tcp_near_gives(const struct tcp_peer *peer)
{
    return peer->boxes != NULL && peer->boxes->inbox != NULL;
}

/* ---- what there is to do --------------------------------------------------------------------- */

bool tess__tcp_near_comes(const struct tcp_peer *peer, int which)
{
    return peer->fd[which] >= 0 && near_free(&peer->boxes->in[which], false) > 0;
}

bool tess__tcp_near_goes(const struct tcp_peer *peer, int which)
{
    return peer->blocked[which] && tess__tcp_near_gives(peer) &&
           near_room(&peer->boxes->out[which]) > 0;
}

bool tess__tcp_near_sleep(struct tcp *tcp)
{
    const struct tcp_peer *peer;

    if (LIST_EMPTY(&tcp->near_peers))
        return true;
    atomic_store(&tcp->inbox->sleeps, 1);
    LIST_FOREACH(peer, &tcp->near_peers, near_link)
    for (int which = 0; which < TCP_CONNECTIONS; which++)
        if (tess__tcp_near_comes(peer, which) || tess__tcp_near_goes(peer, which))
            return false;
    return true;
}

void tess__tcp_near_wake_up(struct tcp *tcp)
{
    if (tcp->inbox != NULL)
        atomic_store_explicit(&tcp->inbox->sleeps, 0, memory_order_relaxed);
}
