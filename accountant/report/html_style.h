// The look of the HTML report: one stylesheet inside the page. Colours are variables with a light, a dark and a printed
// value; the charts take theirs from here (accountant/report/svg_plot.h).
#pragma once

namespace ghostshard::accountant {

inline constexpr const char* kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2430; --soft: #5a6675; --line: #dde2e8;
  --claim: #0b6bcb; --claim-soft: #e8f1fb; --good: #1a7f4b; --warn: #9a5b00; --warn-soft: #fff6e5; --bad: #b3261e;
  --bad-soft: #fdecea; --second: #c2410c; --third: #7c3aed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2028; --text: #e6eaf0; --soft: #9aa7b6; --line: #2d3742;
    --claim: #6cb2ff; --claim-soft: #17283b; --good: #5fd08f; --warn: #f0b45a; --warn-soft: #2d2414; --bad: #ff8a80;
    --bad-soft: #35191a; --second: #ff9a62; --third: #b79bff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
header p { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 0 0 .7rem; }
h3 { font-size: 1rem; margin: 1.1rem 0 .35rem; }
p { margin: 0 0 .7rem; }
p:last-child, ul:last-child { margin-bottom: 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.3rem 1.4rem; margin-top: 1.1rem; }
.claim { border-left: 6px solid var(--claim); }
.claim.void { border-left-color: var(--bad); }
.numbers { display: flex; flex-wrap: wrap; gap: .4rem 2.6rem; margin-bottom: .9rem; }
.number b { display: block; font-size: 2.1rem; line-height: 1.15; color: var(--claim); font-variant-numeric: tabular-nums; }
.void .number b { color: var(--bad); }
.number span { color: var(--soft); font-size: .92rem; }
.formal { color: var(--soft); font-size: .95rem; }
.scroll + .formal { margin-top: .8rem; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.1rem; margin-top: 1.1rem; }
.two > section { margin-top: 0; min-width: 0; }
ul { margin: 0 0 .7rem; padding-left: 1.2rem; }
li { margin-bottom: .35rem; }
ul.marked { list-style: none; padding-left: 0; }
ul.marked li { position: relative; padding: .15rem 0 .15rem 2rem; }
ul.marked li::before { position: absolute; left: .2rem; font-weight: 700; }
li.holds::before { content: "\2713"; color: var(--good); }
li.fails::before { content: "\2717"; color: var(--bad); }
li.trusted::before { content: "?"; color: var(--warn); }
li.no::before { content: "\2013"; color: var(--bad); }
li.fails { background: var(--bad-soft); border-radius: 6px; }
.note { background: var(--warn-soft); border-radius: 8px; padding: .7rem .9rem; margin-bottom: .8rem; }
.note.bad { background: var(--bad-soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .42rem .9rem .42rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .92rem; }
td.n, th.n { text-align: right; padding-right: 0; padding-left: .9rem; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
tr.chosen td { font-weight: 650; }
dl { display: grid; grid-template-columns: minmax(9rem, 15rem) 1fr; gap: .3rem 1.2rem; margin: 0 0 .5rem; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
dd ul { padding-left: 1.1rem; margin: 0; }
.unstated { color: var(--warn); font-style: italic; }
code { font: .88em ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; margin: .4rem 0 0; white-space: pre-wrap; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .5rem; }
svg.plot { display: block; width: 100%; height: auto; font-size: 13.5px; font-family: inherit; }
.plot text { fill: var(--text); }
.plot .tick text { fill: var(--soft); font-variant-numeric: tabular-nums; }
.plot .grid line { stroke: var(--line); }
.plot .axis, .plot .tick line { stroke: var(--soft); }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.plot .line-0 { stroke: var(--claim); stroke-width: 2.8; }
.plot .line-1 { stroke: var(--second); stroke-dasharray: 7 5; }
.plot .line-2 { stroke: var(--third); stroke-dasharray: 1.5 5; stroke-width: 2.6; }
.plot .marker { fill: var(--claim); stroke: var(--card); stroke-width: 2; }
.plot .marker-line { stroke: var(--claim); stroke-dasharray: 3 4; opacity: .7; }
.plot .marker-text { font-weight: 650; fill: var(--claim); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
footer { color: var(--soft); font-size: .9rem; margin-top: 1.4rem; }
@media (max-width: 34rem) {
  main { padding: 1.2rem .8rem 2rem; }
  section { padding: 1rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .55rem; }
  table { font-size: .9rem; }
  th, td { padding-right: .4rem; }
  td.n, th.n { padding-left: .4rem; }
  th.n { white-space: normal; }
}
@media print {
  :root {
    color-scheme: light;
    --page: #ffffff; --card: #ffffff; --text: #000000; --soft: #444444; --line: #bbbbbb;
    --claim: #0b4f9e; --good: #1a6b3f; --warn: #7a4a00; --warn-soft: #f4f4f4; --bad: #9a1c15; --bad-soft: #f4f4f4;
    --second: #a63a0a; --third: #5b21b6;
  }
  @page { margin: 14mm; }
  html { font-size: 10pt; }
  body { font-size: 1rem; }
  .number b { font-size: 1.7rem; }
  .scroll { overflow: visible; }
  table { font-size: .88rem; }
  th, td { padding-right: .3rem; }
  td.n, th.n { padding-left: .3rem; }
  th.n { white-space: normal; }
  main { max-width: none; padding: 0; }
  section { padding: .8rem 1rem; }
  .two { grid-template-columns: 1fr 1fr; }
  .claim, figure, tr, li, dt, dd { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
)css";

}  // namespace ghostshard::accountant
