/* Text that grows, and escaping for HTML. Without memory it is `lost`, to be checked at the end. */
#ifndef TESSERA_TEXT_REPORT_HTML_H
#define TESSERA_TEXT_REPORT_HTML_H

#include <stdbool.h>
#include <stddef.h>

struct tess__html {
    char *bytes; /* [count], with a final zero; NULL while it is empty */
    size_t count, room;
    bool lost; /* there was no memory for all of it */
};

void tess__html_close(struct tess__html *html);

/* Trusted text. */
void tess__html_add(struct tess__html *html, const char *text);
void tess__html_add_bytes(struct tess__html *html, const char *bytes, size_t count);
/* All of another text, lost where it is. */
void tess__html_append(struct tess__html *html, const struct tess__html *part);
/* Trusted text; strings among the arguments must be trusted too. At most 1 KiB. */
void tess__html_print(struct tess__html *html, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Foreign text for element content and quoted attributes: & < > " ' become entities; what is not
 * UTF-8, control characters and marks that turn the direction of text become U+FFFD. NULL is a
 * dash.
 */
void tess__html_escape(struct tess__html *html, const char *text);
/* As tess__html_escape, at most `max` characters; a longer text loses its middle. */
void tess__html_escape_short(struct tess__html *html, const char *text, size_t max);
/* Trusted text, foreign text (of at most `max` characters), trusted text. */
void tess__html_put(struct tess__html *html, const char *before, const char *text,
                    const char *after);
void tess__html_put_short(struct tess__html *html, const char *before, const char *text, size_t max,
                          const char *after);
/* Characters that tess__html_escape_short would write. */
size_t tess__html_length(const char *text, size_t max);

#define TESS__REAL_BYTES 48

/* About four significant digits: "0.0512", "1.70e-06", "1 234 567"; NaN is a dash. */
const char *tess__real(double value, char text[TESS__REAL_BYTES]);
/* So many decimals, thousands apart; NaN is a dash. */
const char *tess__real_fixed(double value, int decimals, char text[TESS__REAL_BYTES]);

#endif
