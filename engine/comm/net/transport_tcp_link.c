/*
 * What the kernel has counted of a connection: bytes that were acknowledged, and the time in which
 * any were under way. linux/tcp.h has fields that the C library's header lacks and cannot be
 * included beside it, so this file is by itself.
 */
#include "comm/net/transport_tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

bool tess__tcp_link(struct tess_transport *transport, int32_t peer,
                    struct tess_transport_link *link_out)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    const struct tcp_peer *to = tess__tcp_at((const struct tcp *)transport, peer);
    const int fd = to != NULL ? to->fd[TCP_DATA] : -1;
    /* Kernels before 4.10 have less of it. Bytes that go by memory are not counted. */
    if (fd < 0 || tess__tcp_near_gives(to) ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_sndbuf_limited))
        return false;
    link_out->sent_bytes = info.tcpi_bytes_acked;
    /* While the receiver has no room left it is the receiver that is slow. */
    link_out->busy_s = 1e-6 * (double)(info.tcpi_busy_time - info.tcpi_rwnd_limited);
    return true;
}
