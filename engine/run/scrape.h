/*
 * One page over HTTP/1.0, for programs that fetch it now and then. Served from a loop of the
 * caller, without threads; clients that are slow, send much or come in numbers cost the caller
 * little: nothing here waits, few are served at a time, and each for a short time.
 */
#ifndef TESSERA_RUN_SCRAPE_H
#define TESSERA_RUN_SCRAPE_H

#include "tessera/status.h"

#include <stddef.h>

struct tess__scrape;

/* Listen at `host` (a name or an address; "": this machine only) and `port` (0: any that is free).
 * `option` names the option in messages. TESS_ERR_USAGE: there is no such address; TESS_ERR_IO:
 * nothing can listen there. */
enum tess_status tess__scrape_open(const char *host, int port, const char *option,
                                   struct tess__scrape **scrape_out);
void tess__scrape_close(struct tess__scrape *scrape); /* NULL is allowed */

/* The port that it listens at. */
int tess__scrape_port(const struct tess__scrape *scrape);

/* Serve whoever is there. `page` returns the text of /metrics, to be freed, NULL without memory; it
 * is called once at most. */
void tess__scrape_serve(struct tess__scrape *scrape, char *(*page)(void *context), void *context);

#endif
