/*
 * The report's styles and its one script. Colours are variables with a light and a dark value: the
 * system's choice counts unless the reader made one (data-theme on the root). Series colours follow
 * Okabe and Ito, darkened or lightened until each stands out from its card by 3:1 at least.
 */
#include "cli/report_section.h"

/* clang-format off */
#define STYLE_DARK \
    "--bg:#0e1116;--card:#171b22;--ink:#e9edf3;--ink2:#a3acb9;--line:#2a303a;" \
    "--grid:#2a313c;--accent:#6cb2ff;--soft:#1d2836;\n" \
    "--ok:#5fd6a2;--okb:#12301f;--bad:#ff9a90;--badb:#3b1715;--cut:#f3c766;" \
    "--cutb:#33270c;\n" \
    "--s0:#4aa8e8;--s1:#ff8a47;--s2:#2fc89b;--s3:#e893cb;--s4:#f0b63f;--s5:#9bd6ff;" \
    "--s6:#aab2bf;--s7:#b294f5;--s8:#6d7686;--s9:#d8cdb8;\n" \
    "--shadow:none\n"

#define STYLE_LIGHT \
    "--bg:#f5f6f8;--card:#fff;--ink:#15181e;--ink2:#59616e;--line:#e2e5ea;" \
    "--grid:#e6e9ee;--accent:#0b63c4;--soft:#eaf2fc;\n" \
    "--ok:#0a6b46;--okb:#def3e9;--bad:#a8221b;--badb:#fce6e3;--cut:#7a5200;" \
    "--cutb:#fdf0d2;\n" \
    "--s0:#0072b2;--s1:#c45500;--s2:#00805c;--s3:#b14a91;--s4:#966800;--s5:#2c8fc9;" \
    "--s6:#4a515c;--s7:#7b52c9;--s8:#8a93a0;--s9:#4d4639;\n" \
    "--shadow:0 1px 2px rgb(16 24 40/.05),0 6px 20px rgb(16 24 40/.05)\n"

const char tess__report_css[] =
    ":root{" STYLE_LIGHT "}\n"
    "@media (prefers-color-scheme:dark){:root[data-theme=auto]{" STYLE_DARK "}}\n"
    ":root[data-theme=dark]{color-scheme:dark;" STYLE_DARK "}\n"
    ":root[data-theme=light]{color-scheme:light}\n"
    "*{box-sizing:border-box}\n"
    "html{scroll-behavior:smooth;scroll-padding-top:4.5rem;"
    "-webkit-text-size-adjust:100%}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,"
    "-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "main{max-width:1400px;margin:0 auto;padding:2rem clamp(1rem,3vw,2.5rem) 3rem}\n"
    "header{position:sticky;top:0;z-index:2;background:color-mix(in srgb,var(--bg) "
    "88%,transparent);backdrop-filter:blur(10px);border-bottom:1px solid var(--line)}"
    "\n"
    ".bar{max-width:1400px;margin:0 auto;padding:.5rem clamp(1rem,3vw,2.5rem);"
    "display:flex;gap:1rem;align-items:center}\n"
    "nav{display:flex;gap:.25rem;overflow-x:auto;flex:1;scrollbar-width:none}\n"
    "nav a{padding:.35rem .8rem;border-radius:99px;color:var(--ink2);"
    "text-decoration:none;font-size:.9rem;white-space:nowrap}\n"
    "nav a:hover{background:var(--soft);color:var(--accent)}\n"
    "button{font:inherit;font-size:.85rem;color:var(--ink);background:var(--card);"
    "border:1px solid var(--line);border-radius:99px;padding:.3rem .9rem;"
    "cursor:pointer;white-space:nowrap}\n"
    "button:hover{border-color:var(--accent)}\n"
    ":focus-visible{outline:2px solid var(--accent);outline-offset:2px;"
    "border-radius:4px}\n"
    ".skip{position:absolute;left:-999px}.skip:focus{left:1rem;top:1rem;z-index:3;"
    "background:var(--card);padding:.5rem}\n"
    "h1{font-size:clamp(1.7rem,4.5vw,2.6rem);line-height:1.15;letter-spacing:-.022em;"
    "margin:.4rem 0 .3rem;overflow-wrap:anywhere}\n"
    "h2{font-size:1.45rem;letter-spacing:-.015em;margin:0 0 .2rem}\n"
    "h3{font-size:1.08rem;letter-spacing:-.008em;margin:0}\n"
    ".summary,.lead{color:var(--ink2);margin:0 0 1.1rem}\n"
    "section{margin-top:3rem}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,"
    "9.5rem),1fr));gap:1rem;margin:1.6rem 0 0}\n"
    ".tile,.card,figure,.notes{background:var(--card);border:1px solid var(--line);"
    "border-radius:16px;box-shadow:var(--shadow)}\n"
    ".tile{padding:1rem 1.25rem}.tile dt{font-size:.85rem;color:var(--ink2)}.tile dd{"
    "margin:0;color:var(--ink2)}\n"
    ".tile b{white-space:nowrap;font-size:1.75rem;letter-spacing:-.02em;"
    "font-weight:650;color:var(--ink)}\n"
    ".tile span{display:block;font-size:.88rem;color:var(--accent);"
    "overflow-wrap:anywhere}\n"
    ".card{padding:1.25rem 1.4rem}\n"
    ".card+.card{margin-top:1rem}\n"
    ".card p{margin:.4rem 0 .6rem;color:var(--ink2)}\n"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),"
    "1fr));gap:1.25rem;align-items:stretch;grid-auto-flow:dense}\n"
    ".tall{grid-column:1/-1}\n"
    ".about{grid-column:1/-1;color:var(--ink2);font-size:.93rem}.about p{"
    "margin:.2rem 0;overflow-wrap:anywhere}.about b{color:var(--ink);font-weight:600}"
    "\n"
    "figure{margin:0;padding:1.25rem 1.4rem 1rem;min-width:0;"
    "container-type:inline-size;display:flex;flex-direction:column}\n"
    "figcaption p{margin:.3rem 0 .7rem;color:var(--ink2);font-size:.92rem;"
    "line-height:1.5;overflow-wrap:anywhere}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.15rem .5rem;margin:0 0 "
    ".4rem -.4rem;padding:0;font-size:.88rem}\n"
    ".legend li{display:flex;align-items:center;gap:.45rem;padding:.1rem .4rem;"
    "border-radius:8px;min-width:0}\n"
    ".legend li:hover{background:var(--soft)}.legend span{overflow-wrap:anywhere}\n"
    ".swatch{flex:none;fill:none}\n"
    ".name .swatch{vertical-align:-.05em;margin-right:.5rem}\n"
    ".markers{position:absolute}\n"
    ".plot{margin-top:auto}.plot.bars{margin-top:.4rem}\n"
    ".numbers{margin-top:.3rem}\n"
    ".bars+.numbers{margin-top:auto}\n"
    ".plot svg{display:block;width:100%;height:auto;max-width:660px;margin:0 auto;"
    "fill:none;stroke:currentColor;color:var(--ink2);stroke-linejoin:round;"
    "stroke-linecap:round}\n"
    /* Below this width the boxes' labels would be too small to read: it scrolls instead. */
    ".plot.line{overflow-x:auto}.plot.line svg{max-width:none}.plot.line .wide{"
    "min-width:54rem}\n"
    ".plot .narrow{max-width:660px}\n"
    "details.numbers table+table{margin-top:1rem}\n"
    ".plot text{font:13px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\","
    "Arial,sans-serif;font-variant-numeric:tabular-nums}\n"
    ".plot .narrow text{font-size:12px}\n"
    ".plot g[class^=s]{transition:opacity .15s}\n"
    ".plot .narrow{display:none}\n"
    "@container (max-width:25rem){.plot .wide{display:none}.plot .narrow{"
    "display:block}}\n"
    ".scroll{overflow-x:auto;max-width:100%}\n"
    ".numbers .scroll,.all .scroll{max-height:24rem;overflow-y:auto;border:1px solid "
    "var(--line);border-radius:10px}\n"
    "table{border-collapse:collapse;width:100%;font-size:.87rem}\n"
    "th,td{padding:.45rem .5rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}\n"
    "th:first-child,td:first-child{padding-left:.6rem}\n"
    "tbody th,.text{text-align:left}\n"
    "thead th{font-weight:600;font-size:.8rem;color:var(--ink2);position:sticky;"
    "top:0;background:var(--card)}\n"
    "tbody tr:last-child>*{border-bottom:0}\n"
    "tbody tr:hover>*{background:var(--soft)}\n"
    "tbody th{font-weight:600}\n"
    "td small,th small{display:block;color:var(--ink2);font-weight:400;"
    "font-size:.8rem;white-space:normal;max-width:22rem}\n"
    ".overview tbody th{position:sticky;left:0;background:var(--card);z-index:1}\n"
    ".options td{white-space:normal;overflow-wrap:anywhere;min-width:7rem;"
    "max-width:22rem}\n"
    ".numbers table{font-size:.84rem}.numbers th,.numbers td{padding:.3rem .7rem}\n"
    ".best{font-weight:700;color:var(--ok)}\n"
    ".differs>*{background:var(--soft)}\n"
    ".state{display:inline-block;padding:.06rem .6rem;border-radius:99px;"
    "font-size:.82rem;font-weight:600}\n"
    ".ok{color:var(--ok);background:var(--okb)}.bad{color:var(--bad);"
    "background:var(--badb)}.cut{color:var(--cut);background:var(--cutb)}\n"
    "code{font:.88em ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\","
    "monospace;overflow-wrap:anywhere}\n"
    ".same{margin:.9rem 0 0!important;padding:.6rem .9rem;background:var(--okb);"
    "border-radius:10px;font-size:.92rem;overflow-wrap:anywhere}.same b{"
    "color:var(--ok)}\n"
    "details>summary{cursor:pointer;color:var(--ink2);font-size:.88rem;"
    "padding:.35rem 0}\n"
    "details>summary:hover{color:var(--accent)}\n"
    ".small{font-size:.82rem;color:var(--ink2);margin:.4rem 0 0}\n"
    ".notes{margin-top:1.4rem;padding:.7rem 1.25rem;background:var(--cutb);"
    "border-color:transparent;box-shadow:none}\n"
    ".notes summary{color:var(--cut);font-weight:600}.notes ul{margin:.2rem 0 .5rem;"
    "padding-left:1.1rem;font-size:.9rem;overflow-wrap:anywhere}\n"
    "footer{max-width:1400px;margin:0 auto;padding:0 clamp(1rem,3vw,2.5rem) 2.5rem;"
    "color:var(--ink2);font-size:.85rem}\n"
    "@media (max-width:40rem){main{padding-top:1.2rem}section{margin-top:2.2rem}"
    "figure,.card{padding:1rem;border-radius:14px}.overview tbody th{position:static}"
    "}\n"
    "@media (prefers-reduced-motion:reduce){*{scroll-behavior:auto!important;"
    "transition:none!important}}\n"
    "@media print{header,.skip,footer{display:none}body{background:#fff;"
    "font-size:11pt}main{max-width:none;padding:0}section{margin-top:1.5rem}\n"
    ".grid{grid-template-columns:1fr 1fr;gap:.6rem}figure,.card,.tile{"
    "break-inside:avoid;box-shadow:none}.scroll{overflow:visible;max-height:none}"
    "table{font-size:.72rem}th,td{padding:.2rem .35rem}h2{break-after:avoid}}\n"
    "@media print{:root:root:root{color-scheme:light;" STYLE_LIGHT "}}\n";

/* Turns the theme from the system's to light to dark, and remembers it where it may. */
const char tess__report_script[] =
    "(function(){var r=document.documentElement,b=document.getElementById('theme'),"
    "m=['auto','light','dark'],k='tessera-report-theme',i=0;try{i=Math.max(0,"
    "m.indexOf(localStorage.getItem(k)))}catch(e){}function s(){r.dataset.theme=m[i];"
    "b.textContent='Theme: '+m[i]}b.hidden=false;b.onclick=function(){i=(i+1)%3;try{"
    "localStorage.setItem(k,m[i])}catch(e){}s()};s()})()";
/* clang-format on */

/* The page's policy lets this script run and no other: base 64 of its SHA-256. */
const char tess__report_script_hash[] = "ZcQGKBpWT6jEmiGAK5irB6m2Dlyy/pRE/okqNrZO2L0=";
