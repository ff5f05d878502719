/*
 * The text "text": stories that a grammar makes, the same bytes on every machine, from nothing but
 * this file. It is no natural language. What there is to learn: spelling, a vocabulary whose words
 * are not equally likely, agreement of pronouns with names, quotation marks that close, the words
 * of a document's subject, its people, town and years, which come again, and sums of numbers.
 */
#include "data/data_tokens.h"

#include "base/cgroup.h"
#include "base/hash.h"
#include "base/team.h"
#include "tessera/check.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TEXT_NAME "text"

/* Above what a document has: up to 2600, of at most 5 paragraphs of 7 sentences. */
#define TEXT_DOCUMENT_BYTES 4096
#define TEXT_DEPTH          6 /* of phrases in phrases */

/* ---- the words ----------------------------------------------------------------------------- */

#define WORDS_MAX 96

#define TEXT_COUNT(list) (sizeof(list) / sizeof(*(list)))

static const char *const text_list[] = {
    /* Nouns, eight subjects of 24. */
    "boat sail rope anchor harbour net oar mast wave gull lighthouse captain pilot island shore "
    "current storm cabin deck crew chart lantern sailor tide",
    "field barn plough seed harvest mill cow horse fence orchard apple wagon farmer shepherd goat "
    "meadow hedge well pond bee hive cheese bun cellar",
    "clock gear spring wheel bolt hammer anvil workshop smith engine boiler pipe valve lever crane "
    "furnace chain screw lathe drill gauge piston ladder stool",
    "book letter page table archive scholar pupil teacher map poem lesson desk candle ink pen note "
    "chapter riddle cipher scroll printer margin title volume",
    "fiddle drum flute song choir stage dancer curtain mask actor concert hall bell tune refrain "
    "piper audience costume organ rehearsal verse sonnet ballad trumpet",
    "market coin purse merchant scale cloth barrel price ledger bargain stall spice silk customer "
    "carpet basket tailor baker loan ring jewel debt auction crate",
    "star moon comet telescope night tower prism planet shadow observatory dome astronomer mirror "
    "calendar satellite horizon orbit signal cloud dawn sunrise sunset meteor eclipse",
    "forest path oak stag owl hare hunter beaver river bridge stone valley cave trail camp fire "
    "tent "
    "ranger squirrel bear fern brook hollow thicket",
    /* a: adjectives */
    "old new small large red green blue quiet loud bright dark heavy light narrow wide broken "
    "clean dusty rusty golden silver wooden empty full cold warm strange famous gentle stubborn "
    "clever careful hungry tired proud honest silent bitter sweet crooked round hidden distant "
    "sturdy fragile polished ragged sudden patient early humble curious",
    /* v: what a person does to a thing */
    "found sold bought carried lost repaired painted watched counted hid described borrowed "
    "cleaned lifted measured followed opened closed remembered forgot dropped pulled pushed drew "
    "noticed admired traded guarded examined wrapped moved built kept left",
    /* i: what a thing or a person does */
    "slept vanished waited trembled returned laughed fell moved shone turned disappeared arrived "
    "rested stopped listened sang changed worked failed stayed",
    /* d: months */
    "May June July April March August October January December February November September",
    /* p: prepositions */
    "near behind under above beside inside outside beyond before against",
    /* c: ways to say so */
    "said asked answered whispered shouted cried replied explained repeated wrote",
    /* women, then men */
    "Anna Clara Edith Flora Greta Helen Irene Julia Laura Maria Nora Olga Paula Ruth Sofia Vera "
    "Wilma Agnes Beatrice Doris",
    "Adam Boris Conrad David Edgar Felix George Hugo Ivan Jacob Karl Leo Martin Niels Otto Peter "
    "Robert Simon Thomas Victor",
};

enum { TEXT_SUBJECTS = 8, TEXT_A = 8, TEXT_V, TEXT_I, TEXT_D, TEXT_P, TEXT_C, TEXT_HER, TEXT_HIS };
enum { TEXT_LISTS = sizeof(text_list) / sizeof(*text_list) };

/*
 * Sentences and phrases. After %: a noun phrase N, a noun n, an adjective with its article @, words
 * of the lists a v i d p c, the first and second person 1 2, their pronouns h g, whose w o, the
 * town T, a year of the document Y, a number #, a phrase of place or time P, a clause C, a sum +.
 */
static const char *const text_sentence[] = {
    "%1 %v %N %P.",
    "%1 %v %N, and %2 %v %N.",
    "%N %i %P.",
    "In %Y, %N %P %i, and %h %v %N.",
    "The %n of %N was %a but %a.",
    "\"%C,\" %c %1.",
    "\"%C,\" %c %2, \"and %C.\"",
    "\"Why is %N so %a?\" asked %2. \"Because %C,\" %c %1.",
    "When %N %i, %2 %v %o %a %n.",
    "%+",
    "%+",
    "Nobody in %T %v %N after %Y.",
    "Then %h %v %w %n and %v %N %P.",
    "%2 %i %P, but %1 %v %N.",
    "%T was %a in %d, and %N %i.",
    "If %C, %g would have %# %ns.",
};
static const char *const text_noun[] = {
    "the %n", "the %a %n", "the %a %n",         "%@, %a %n",    "the %n of %T",
    "%# %ns", "%w %n",     "the %n that %1 %v", "the %n %p %N", "the %a %n that %i"};
static const char *const text_place[] = {"%p the %n", "%p %N",   "in %T",   "on %@ day in %d",
                                         "in %Y",     "last %d", "with %2", "for %# days"};
static const char *const text_clause[] = {"the %n was %a",  "%N was %a",    "%1 %v %N",
                                          "%2 %v %N in %T", "the %n %i %P", "%N and %N %i"};

struct text_words {
    const char *word[TEXT_LISTS][WORDS_MAX];
    int length[TEXT_LISTS][WORDS_MAX], count[TEXT_LISTS];
};

static void text_divide(struct text_words *words)
{
    memset(words, 0, sizeof(*words));
    for (int list = 0; list < TEXT_LISTS; list++)
        for (const char *at = text_list[list]; *at != '\0'; at += *at == ' ') {
            const int i = words->count[list]++, length = (int)strcspn(at, " ");
            words->word[list][i] = at;
            words->length[list][i] = length;
            at += length;
        }
}

/* ---- one document -------------------------------------------------------------------------- */

struct text_writer {
    const struct text_words *words;
    uint64_t key, drawn;
    int subject, year;
    int person[2];
    bool woman[2];
    char town[24];
    char *target;
    size_t count;
};

/* [0, count), each equally likely but for 2^-32. */
static int text_draw(struct text_writer *w, int count)
{
    const uint64_t word = tess_hash_mix(w->key + w->drawn++) >> 32;
    return (int)(word * (uint64_t)count >> 32);
}

/* [0, count), small numbers more often: a word has the rank of its place in its list. */
static int text_draw_rank(struct text_writer *w, int count)
{
    const int high = text_draw(w, count), low = text_draw(w, high + 1);
    return low;
}

static void text_put(struct text_writer *w, const char *text, size_t bytes)
{
    if (bytes > TEXT_DOCUMENT_BYTES - w->count)
        bytes = TEXT_DOCUMENT_BYTES - w->count;
    memcpy(w->target + w->count, text, bytes);
    w->count += bytes;
}

static void text_put_word(struct text_writer *w, int list, int i)
{
    text_put(w, w->words->word[list][i], (size_t)w->words->length[list][i]);
}

/* >= 0. */
static void text_put_number(struct text_writer *w, int number)
{
    char text[16];
    size_t at = sizeof(text);
    do
        text[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    text_put(w, text + at, sizeof(text) - at);
}

static void text_expand(struct text_writer *w, const char *form, int depth);

/* One of the forms; the first, which has no phrase in it, in the depth. */
static void text_put_phrase(struct text_writer *w, const char *const *form, size_t count, int depth)
{
    text_expand(w, form[depth < TEXT_DEPTH ? text_draw(w, (int)count) : 0], depth + 1);
}

static void text_put_article(struct text_writer *w)
{
    const int i = text_draw_rank(w, w->words->count[TEXT_A]);
    const bool vowel = strchr("aeiou", w->words->word[TEXT_A][i][0]) != NULL;
    text_put(w, "an ", vowel ? 2 : 1);
    text_put(w, " ", 1);
    text_put_word(w, TEXT_A, i);
}

/* A noun, mostly of the document's subject. */
static void text_put_noun(struct text_writer *w)
{
    const int list = text_draw(w, 4) < 3 ? w->subject : text_draw(w, TEXT_SUBJECTS);
    text_put_word(w, list, text_draw_rank(w, w->words->count[list]));
}

static void text_put_pronoun(struct text_writer *w, int who, bool whose)
{
    const char *const pronoun = w->woman[who] ? whose ? "her" : "she" : whose ? "his" : "he";
    text_put(w, pronoun, strlen(pronoun));
}

static void text_put_text(struct text_writer *w, const char *text)
{
    text_put(w, text, strlen(text));
}

/* "Ada had 3 rivers and found 4 more, so she had 7 rivers." */
static void text_put_sum(struct text_writer *w)
{
    const int a = 2 + text_draw(w, 48), b = 2 + text_draw(w, 48), who = text_draw(w, 2);
    char noun[32];
    const size_t start = w->count;
    text_put_noun(w);
    const size_t length = w->count - start < sizeof(noun) ? w->count - start : 0;
    memcpy(noun, w->target + start, length);
    w->count = start;
    text_expand(w, who == 0 ? "%1 had " : "%2 had ", 0);
    text_put_number(w, a);
    text_put(w, " ", 1);
    text_put(w, noun, length);
    text_expand(w, "s and %v ", 0);
    text_put_number(w, b);
    text_put_text(w, " more, so ");
    text_put_pronoun(w, who, false);
    text_put_text(w, " had ");
    text_put_number(w, a + b);
    text_put(w, " ", 1);
    text_put(w, noun, length);
    text_put_text(w, "s.");
}

static void text_put_item(struct text_writer *w, char item, int depth)
{
    static const int list[UCHAR_MAX + 1] = {['a'] = TEXT_A, ['v'] = TEXT_V, ['i'] = TEXT_I,
                                            ['d'] = TEXT_D, ['p'] = TEXT_P, ['c'] = TEXT_C};
    const int of = list[(unsigned char)item];
    if (of > 0) {
        text_put_word(w, of, text_draw_rank(w, w->words->count[of]));
        return;
    }
    switch (item) {
    case '@':
        text_put_article(w);
        break;
    case '1':
    case '2':
        text_put_word(w, w->woman[item - '1'] ? TEXT_HER : TEXT_HIS, w->person[item - '1']);
        break;
    case 'h':
    case 'g':
        text_put_pronoun(w, item == 'g', false);
        break;
    case 'o':
    case 'w':
        text_put_pronoun(w, item == 'o', true);
        break;
    case 'n':
        text_put_noun(w);
        break;
    case 'N':
        text_put_phrase(w, text_noun, TEXT_COUNT(text_noun), depth);
        break;
    case 'P':
        text_put_phrase(w, text_place, TEXT_COUNT(text_place), depth);
        break;
    case 'C':
        text_put_phrase(w, text_clause, TEXT_COUNT(text_clause), depth);
        break;
    case 'T':
        text_put(w, w->town, strlen(w->town));
        break;
    case 'Y':
        text_put_number(w, w->year + text_draw(w, 4));
        break;
    case '#':
        text_put_number(w, 2 + text_draw_rank(w, 98));
        break;
    default:
        text_put_sum(w);
    }
}

static void text_expand(struct text_writer *w, const char *form, int depth)
{
    for (const char *at = form; *at != '\0';) {
        const char *item = at;
        while (*item != '\0' && *item != '%')
            item++;
        text_put(w, at, (size_t)(item - at));
        if (*item == '%')
            text_put_item(w, *++item, depth);
        at = item + (*item != '\0');
    }
}

/* A sentence begins with a capital letter, behind a quotation mark too. */
static void text_put_sentence(struct text_writer *w, const char *form)
{
    size_t start = w->count;
    text_expand(w, form, 0);
    start += w->target[start] == '"';
    if (w->target[start] >= 'a' && w->target[start] <= 'z')
        w->target[start] = (char)(w->target[start] - 'a' + 'A');
}

/* A name that other documents hardly have: four syllables. */
static void text_name_town(struct text_writer *w)
{
    static const char consonant[] = "bdfgklmnprstvz", vowel[] = "aeiou";
    size_t i = 0;
    for (int syllable = 0; syllable < 4; syllable++) {
        w->town[i++] = consonant[text_draw(w, sizeof(consonant) - 1)];
        w->town[i++] = vowel[text_draw(w, sizeof(vowel) - 1)];
    }
    w->town[0] = (char)(w->town[0] - 'a' + 'A');
    w->town[i] = '\0';
}

static size_t text_document(const struct text_words *words, int64_t document, char *target)
{
    struct text_writer w = {
        .words = words, .key = tess_hash_mix((uint64_t)document + 1), .target = target};
    w.subject = text_draw(&w, TEXT_SUBJECTS);
    w.year = 1600 + text_draw(&w, 400);
    for (int p = 0; p < 2; p++) {
        w.woman[p] = text_draw(&w, 2) == 0;
        w.person[p] = text_draw(&w, 20 - p);
    }
    w.person[1] = (w.person[0] + 1 + w.person[1]) % 20; /* another one */
    text_name_town(&w);
    text_put_sentence(&w, "the %a %n of %T\n\n");
    const int paragraphs = 2 + text_draw(&w, 4);
    for (int p = 0; p < paragraphs; p++) {
        const int sentences = 3 + text_draw(&w, 5);
        for (int s = 0; s < sentences; s++) {
            text_put_sentence(&w, text_sentence[text_draw(&w, (int)TEXT_COUNT(text_sentence))]);
            text_put(&w, s + 1 < sentences ? " " : "\n\n", s + 1 < sentences ? 1 : 2);
        }
    }
    text_put(&w, "\n", 1);
    return w.count;
}

/* Bytes of the first 0, 200, 400, ... documents: what is made below, counted once. None is made to
 * count those of the default share for validation. */
#define TEXT_COUNTED 200
static const int64_t text_counted[] = {
    0,        237593,   481289,   726705,   977137,   1212391, 1458686,  1702568,  1929762,
    2180059,  2440762,  2682145,  2920981,  3178809,  3406422, 3646314,  3883543,  4111867,
    4351236,  4595782,  4837185,  5091339,  5335670,  5573343, 5815402,  6047355,  6288153,
    6532543,  6784680,  7034773,  7272619,  7524357,  7765483, 7998998,  8250551,  8487434,
    8731180,  8968772,  9202289,  9441457,  9690911,  9932010, 10167486, 10404718, 10652343,
    10893177, 11131730, 11370534, 11622414, 11865408, 12111280};

_Static_assert(sizeof(text_counted) / sizeof(*text_counted) ==
                   TESS__TEXT_DOCUMENTS / TEXT_COUNTED + 1,
               "all documents are counted");

static int64_t text_bytes(const struct text_words *words, int64_t documents)
{
    const int64_t near = (documents + TEXT_COUNTED / 2) / TEXT_COUNTED;
    int64_t bytes = text_counted[near], at = near * TEXT_COUNTED;
    char target[TEXT_DOCUMENT_BYTES];

    for (; at < documents; at++)
        bytes += (int64_t)text_document(words, at, target);
    while (at > documents)
        bytes -= (int64_t)text_document(words, --at, target);
    return bytes;
}

int64_t tess__text_made_bytes(int64_t documents)
{
    struct text_words words;
    text_divide(&words);
    return text_bytes(&words, documents);
}

/* Documents [first, end), which begin `skipped` bytes behind the first of all. */
struct text_range {
    const struct text_words *words;
    int64_t first, end, skipped;
    char *target;
    int64_t *ends; /* [end - first] */
};

/* Those of the range that are counted together: where they begin is known. */
static void text_make_part(void *context, int64_t part)
{
    const struct text_range *range = context;
    const int64_t counted = range->first / TEXT_COUNTED + part, from = counted * TEXT_COUNTED;
    const int64_t end = range->end - from < TEXT_COUNTED ? range->end : from + TEXT_COUNTED;
    int64_t d = from > range->first ? from : range->first;
    int64_t at = from > range->first ? text_counted[counted] - range->skipped : 0;
    for (; d < end; d++) {
        at += (int64_t)text_document(range->words, d, range->target + at);
        range->ends[d - range->first] = at;
    }
}

enum tess_status tess__text_make(int64_t first, int64_t end, struct tess_token_stream *stream)
{
    const int64_t count = end - first;
    const int64_t parts = (end + TEXT_COUNTED - 1) / TEXT_COUNTED - first / TEXT_COUNTED;
    const int hands = tess_cores() < parts ? tess_cores() : (int)parts;
    struct text_words words;
    uint8_t *memory = NULL;
    struct tess_team *team = NULL;

    text_divide(&words);
    const int64_t skipped = text_bytes(&words, first);
    const size_t bytes = (size_t)(text_bytes(&words, end) - skipped);
    const size_t at = (bytes + 7) / 8 * 8, mapped = at + (size_t)count * sizeof(int64_t);
    TESS_TRY(tess__stream_map(mapped, &memory));
    int64_t *ends = (int64_t *)(void *)(memory + at);
    const enum tess_status status = tess_team_open(hands, NULL, NULL, &team);
    if (status != TESS_OK) {
        munmap(memory, mapped);
        return status;
    }
    struct text_range range = {&words, first, end, skipped, (char *)memory, ends};
    tess_team_run(team, hands, parts, text_make_part, &range);
    tess_team_close(team);
    mprotect(memory, mapped, PROT_READ);
    stream->kind = &tess__token_text;
    return tess__stream_append(stream, TEXT_NAME,
                               (struct tess__token_piece){.token = memory,
                                                          .count = (int64_t)bytes,
                                                          .end = ends,
                                                          .ends = count,
                                                          .map = memory,
                                                          .map_bytes = mapped});
}
