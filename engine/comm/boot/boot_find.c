/*
 * Finds rank 0 without MASTER_ADDR: by what mpirun and Slurm leave in the environment, or by asking
 * mpirun. It does not guess: where the host is not certain, the error names what to set.
 */
#include "comm/boot/boot_find.h"

#include "base/hash.h"
#include "comm/boot/boot_socket.h"
#include "tessera/check.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below what Linux gives to connections (32768 and on), above what services have. Jobs that come to
 * the same one take the next. */
#define FIND_PORT_FIRST 18000
#define FIND_PORT_LAST  31000
#define FIND_PORTS      8

const char *tess__boot_variable(const char *name)
{
    const char *value = name != NULL ? getenv(name) : NULL;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

void tess__boot_find_port(struct tess_boot_env *env)
{
    env->port = FIND_PORT_FIRST + (int32_t)(env->job % (FIND_PORT_LAST - FIND_PORT_FIRST));
    env->port_count = FIND_PORTS;
}

static void find_here(struct tess_boot_env *env)
{
    snprintf(env->address, sizeof(env->address), "127.0.0.1");
}

/* Add one to a list joined by ','; false when it is full. */
static bool find_add(char *list, size_t bytes, const char *one, size_t length)
{
    const size_t used = strlen(list);
    if (length == 0 || used + length + 2 > bytes)
        return length == 0;
    snprintf(list + used, bytes - used, "%s%.*s", used > 0 ? "," : "", (int)length, one);
    return true;
}

/* ---- this host's addresses ------------------------------------------------------------------- */

static bool find_address_text(const struct ifaddrs *at, char text[INET6_ADDRSTRLEN])
{
    if (at->ifa_addr == NULL || (at->ifa_flags & IFF_UP) == 0 ||
        (at->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    if (at->ifa_addr->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)at->ifa_addr)->sin_addr, text,
                         INET6_ADDRSTRLEN) != NULL;
    if (at->ifa_addr->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)at->ifa_addr)->sin6_addr;
    return !IN6_IS_ADDR_LINKLOCAL(six) && inet_ntop(AF_INET6, six, text, INET6_ADDRSTRLEN) != NULL;
}

/* Those by which others may reach this host, IPv4 first, as many as fit; false: not known. */
static bool find_own(char *list, size_t bytes)
{
    static const int family[] = {AF_INET, AF_INET6};
    struct ifaddrs *all = NULL;
    char text[INET6_ADDRSTRLEN];
    list[0] = '\0';
    if (getifaddrs(&all) != 0)
        return false;
    for (int f = 0; f < 2; f++)
        for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next)
            if (at->ifa_addr != NULL && at->ifa_addr->sa_family == family[f] &&
                find_address_text(at, text))
                (void)find_add(list, bytes, text, strlen(text));
    freeifaddrs(all);
    return true;
}

/* Is one of these this host, by an address of it or by its name up to the first point? */
static bool find_is_own(const char *list)
{
    char own[4096], host[TESS_BOOT_ADDRESS_BYTES] = "";
    const bool known = find_own(own, sizeof(own));
    (void)gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    for (size_t length; *list != '\0'; list += length + (list[length] == ',')) {
        length = strcspn(list, ",");
        if (strcspn(list, ".,") == strlen(host) && strncmp(list, host, strlen(host)) == 0)
            return true;
        for (const char *at = own; *at != '\0';
             at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
            if (strcspn(at, ",") == length && strncmp(at, list, length) == 0)
                return true;
    }
    return !known;
}

/* ---- mpirun ---------------------------------------------------------------------------------- */

bool tess__boot_uri_hosts(const char *uri, char *hosts, size_t bytes)
{
    hosts[0] = '\0';
    for (const char *at = strstr(uri, "://"); at != NULL; at = strstr(at, "://")) {
        at += 3;
        const char *end = at + strcspn(at, ";");
        while (end > at && *end != ':') /* the port is after the last one */
            end--;
        while (at < end) {
            const bool six = *at == '[';
            at += six;
            size_t length = strcspn(at, six ? "]" : ",:");
            if (at + length > end)
                return false;
            if (!find_add(hosts, bytes, at, length))
                return hosts[0] != '\0'; /* as many as fit */
            at += length;
            at += strspn(at, "],");
        }
    }
    return hosts[0] != '\0';
}

/* One item of the list: "login", or "r[1:0-3,7]h0", whose numbers have so many digits. False: it is
 * neither, or the list is full. */
static bool find_add_nodes(const char *item, size_t length, char *hosts, size_t bytes)
{
    const char *open = memchr(item, '[', length), *end = item + length;
    if (open == NULL)
        return find_add(hosts, bytes, item, length);
    const char *close = memchr(open, ']', (size_t)(end - open));
    char *at;
    const long width = strtol(open + 1, &at, 10);
    if (close == NULL || *at != ':' || width < 0 || width > 9)
        return false;
    while (at < close) {
        char one[TESS_BOOT_ADDRESS_BYTES];
        const long first = strtol(at + 1, &at, 10);
        const long last = *at == '-' ? strtol(at + 1, &at, 10) : first;
        if ((*at != ',' && at != close) || first < 0 || last < first)
            return false;
        for (long n = first; n <= last; n++) {
            const int used = snprintf(one, sizeof(one), "%.*s%0*ld%.*s", (int)(open - item), item,
                                      (int)width, n, (int)(end - close - 1), close + 1);
            if (used >= (int)sizeof(one) || !find_add(hosts, bytes, one, (size_t)used))
                return false;
        }
    }
    return true;
}

void tess__boot_add_nodes(const char *regex, char *hosts, size_t bytes)
{
    while (*regex != '\0' && *regex != '@') {
        size_t length = 0;
        for (bool inside = false; regex[length] != '\0' && regex[length] != '@'; length++) {
            inside = regex[length] == '[' || (inside && regex[length] != ']');
            if (regex[length] == ',' && !inside)
                break;
        }
        if (!find_add_nodes(regex, length, hosts, bytes))
            return;
        regex += length + (regex[length] == ',');
    }
}

/*
 * mpirun itself is the first host where it computes at all, which is where rank 0 is unless the
 * user has mapped ranks otherwise. Where it does not, the environment has the other hosts too, and
 * rank 0 is on one of them: it is looked for on all that fit.
 */
enum tess_status tess__boot_find_openmpi(struct tess_boot_env *env)
{
    const char *uri = tess__boot_variable("OMPI_MCA_orte_hnp_uri");
    const char *nodes = tess__boot_variable("OMPI_MCA_orte_node_regex");
    if (env->local_count == env->rank_count) {
        find_here(env);
        return TESS_OK;
    }
    if (uri == NULL || !tess__boot_uri_hosts(uri, env->address, sizeof(env->address)))
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank %d of %d cannot find the host of rank 0: this mpirun does not give its own "
                  "(OMPI_MCA_orte_hnp_uri); give all ranks that host in MASTER_ADDR, with mpirun "
                  "-x MASTER_ADDR=HOST",
                  (int)env->rank, (int)env->rank_count);
    if (nodes != NULL)
        tess__boot_add_nodes(nodes, env->address, sizeof(env->address));
    if (env->rank == 0 && !find_is_own(env->address))
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank 0 is on none of the hosts where other ranks would look for it (%s): give "
                  "all ranks its host in MASTER_ADDR, with mpirun -x MASTER_ADDR=HOST",
                  env->address);
    return TESS_OK;
}

enum tess_status tess__boot_find_pmi(struct tess_boot_env *env)
{
    env->address[0] = '\0';
    if (tess__boot_variable("PMI_FD") == NULL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank %d of %d cannot find the host of rank 0: there is no PMI_FD by which to "
                  "ask mpirun; give all ranks the host of rank 0 and a free port of it in "
                  "MASTER_ADDR and MASTER_PORT",
                  (int)env->rank, (int)env->rank_count);
    return TESS_OK;
}

enum tess_status tess_boot_find(struct tess_boot_env *env, double timeout_s)
{
    char name[TESS_BOOT_ADDRESS_BYTES], address[TESS_BOOT_ADDRESS_BYTES];
    const bool here = env->local_count == env->rank_count;
    if (env->rank_count == 1 || env->address[0] != '\0')
        return TESS_OK;
    (void)find_own(address, sizeof(address));
    TESS_TRY(tess__boot_pmi(env->rank, timeout_s, name, here ? NULL : address));
    env->asked = true;
    if (env->job == 0)
        env->job = tess_hash_bytes(name, strlen(name));
    if (env->port_count > 1)
        tess__boot_find_port(env);
    if (here)
        find_here(env);
    else
        memcpy(env->address, address, sizeof(address));
    return TESS_OK;
}

void tess_boot_leave(const struct tess_boot_env *env)
{
    if (env->asked)
        tess__boot_pmi_leave();
}

/* ---- Slurm ----------------------------------------------------------------------------------- */

bool tess__boot_first_host(const char *list, char *host, size_t bytes)
{
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ','; at++) {
        if (used + 1 >= bytes)
            return false;
        if (*at != '[') {
            host[used++] = *at;
            continue;
        }
        /* The first number of the brackets, with its zeros. */
        const size_t length = strspn(++at, "0123456789");
        if (length == 0 || used + length + 1 >= bytes || strchr(at, ']') == NULL)
            return false;
        memcpy(host + used, at, length);
        used += length;
        at = strchr(at, ']');
    }
    host[used] = '\0';
    return used > 0;
}

enum tess_status tess__boot_find_slurm(struct tess_boot_env *env)
{
    const char *nodes = tess__boot_variable("SLURM_STEP_NUM_NODES"),
               *list = tess__boot_variable("SLURM_STEP_NODELIST");
    if (nodes == NULL)
        nodes = tess__boot_variable("SLURM_NNODES");
    if (list == NULL)
        list = tess__boot_variable("SLURM_JOB_NODELIST");
    if (nodes != NULL && strcmp(nodes, "1") == 0) {
        find_here(env);
        return TESS_OK;
    }
    if (list == NULL || !tess__boot_first_host(list, env->address, sizeof(env->address)))
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank %d of %d cannot find the host of rank 0: SLURM_STEP_NODELIST is %s%.60s%s; "
                  "give all ranks that host in MASTER_ADDR",
                  (int)env->rank, (int)env->rank_count, list != NULL ? "'" : "not set",
                  list != NULL ? list : "", list != NULL ? "', which names none" : "");
    return TESS_OK;
}
