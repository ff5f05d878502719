/*
 * The colours of reports and pictures, as CSS variables with a light and a dark value: grounds,
 * ink, lines, states, and series s0 .. s10, which follow Okabe and Ito, darkened or lightened until
 * each stands out from its card by 3:1 at least.
 */
#ifndef TESSERA_TEXT_REPORT_COLOURS_H
#define TESSERA_TEXT_REPORT_COLOURS_H

/* clang-format off */
#define TESS__COLOURS_DARK \
    "--bg:#0e1116;--card:#171b22;--ink:#e9edf3;--ink2:#a3acb9;--line:#2a303a;" \
    "--grid:#2a313c;--accent:#6cb2ff;--soft:#1d2836;\n" \
    "--ok:#5fd6a2;--okb:#12301f;--bad:#ff9a90;--badb:#3b1715;--cut:#f3c766;" \
    "--cutb:#33270c;\n" \
    "--s0:#4aa8e8;--s1:#ff8a47;--s2:#2fc89b;--s3:#e893cb;--s4:#f0b63f;--s5:#8af0f0;" \
    "--s6:#aab2bf;--s7:#b294f5;--s8:#6d7686;--s9:#c9bd7a;--s10:#e0777d;\n" \
    "--shadow:none\n"

#define TESS__COLOURS_LIGHT \
    "--bg:#f5f6f8;--card:#fff;--ink:#15181e;--ink2:#59616e;--line:#e2e5ea;" \
    "--grid:#e6e9ee;--accent:#0b63c4;--soft:#eaf2fc;\n" \
    "--ok:#0a6b46;--okb:#def3e9;--bad:#a8221b;--badb:#fce6e3;--cut:#7a5200;" \
    "--cutb:#fdf0d2;\n" \
    "--s0:#0072b2;--s1:#c45500;--s2:#00805c;--s3:#b14a91;--s4:#966800;--s5:#0a9fb5;" \
    "--s6:#4a515c;--s7:#7b52c9;--s8:#8a93a0;--s9:#a08c5b;--s10:#8c2f39;\n" \
    "--shadow:0 1px 2px rgb(16 24 40/.05),0 6px 20px rgb(16 24 40/.05)\n"
/* clang-format on */

#endif
