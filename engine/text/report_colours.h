/*
 * The colours of reports and pictures, as CSS variables with a light and a dark value: grounds,
 * ink, lines, states, and series s0 .. s11, which follow Okabe and Ito, changed until each stands
 * out from its card by 3:1 at least and from all others, for eyes without red or green cones too.
 */
#ifndef TESSERA_TEXT_REPORT_COLOURS_H
#define TESSERA_TEXT_REPORT_COLOURS_H

/* clang-format off */
#define TESS__COLOURS_DARK \
    "--bg:#0e1116;--card:#171b22;--ink:#e9edf3;--ink2:#a3acb9;--line:#2a303a;" \
    "--grid:#2a313c;--accent:#6cb2ff;--soft:#1d2836;\n" \
    "--ok:#5fd6a2;--okb:#12301f;--bad:#ff9a90;--badb:#3b1715;--cut:#f3c766;" \
    "--cutb:#33270c;\n" \
    "--s0:#6cb7f2;--s1:#f68343;--s2:#00b88c;--s3:#d787bf;--s4:#f7bb3f;--s5:#8df4f5;" \
    "--s6:#c1c0c2;--s7:#9b8dfa;--s8:#6d7686;--s9:#c7bc7b;--s10:#df7374;--s11:#c1de70;\n" \
    "--shadow:none\n"

#define TESS__COLOURS_LIGHT \
    "--bg:#f5f6f8;--card:#fff;--ink:#15181e;--ink2:#59616e;--line:#e2e5ea;" \
    "--grid:#e6e9ee;--accent:#0b63c4;--soft:#eaf2fc;\n" \
    "--ok:#0a6b46;--okb:#def3e9;--bad:#a8221b;--badb:#fce6e3;--cut:#7a5200;" \
    "--cutb:#fdf0d2;\n" \
    "--s0:#217bbb;--s1:#cc4400;--s2:#00805e;--s3:#a9438a;--s4:#7e7f21;--s5:#009ebb;" \
    "--s6:#474e59;--s7:#7551cc;--s8:#8d929a;--s9:#a08c5b;--s10:#8c3138;--s11:#324a00;\n" \
    "--shadow:0 1px 2px rgb(16 24 40/.05),0 6px 20px rgb(16 24 40/.05)\n"
/* clang-format on */

#endif
