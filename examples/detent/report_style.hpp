// SPDX-License-Identifier: BSD-3-Clause
// The style sheet of the report. Colours are variables with values for light and dark. Whatever a
// colour says is also said in words. The fonts are those of the reader's system.
#ifndef DETENT_CLI_REPORT_STYLE_HPP
#define DETENT_CLI_REPORT_STYLE_HPP

namespace detent_cli {

inline constexpr char report_style[] = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --surface: #ffffff; --ink: #1b1f24; --muted: #5b6570; --rule: #e2e2dc;
  --grid: #ecece7; --bar: #3f6fb5; --fill: #a9c1e3; --line: #c2410c; --cut: #c2410c1f;
  --fair: #b7791f; --poor: #b3261e; --poor-page: #fbeae8; --good: #2e7040; --exact: #5d8f6c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --surface: #1c2024; --ink: #e4e7ea; --muted: #98a2ad; --rule: #30363d;
    --grid: #282d33; --bar: #7ba5e0; --fill: #35527d; --line: #f2884b; --cut: #f2884b26;
    --fair: #d9a441; --poor: #f0857d; --poor-page: #3a2220; --good: #7cc08f; --exact: #6fa882;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 3.5rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans",
    "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums lining-nums;
}
header, main, footer { max-width: 1200px; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; font-weight: 650; letter-spacing: -.015em; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; line-height: 1.3; font-weight: 650; letter-spacing: -.01em; margin: 3rem 0 .25rem; }
h3 { font-size: .86rem; line-height: 1.4; font-weight: 600; margin: 0; }
p { margin: 0 0 .9rem; max-width: 46rem; }
a { color: inherit; text-decoration: underline; text-decoration-color: var(--rule); text-underline-offset: .2em; }
a:hover { text-decoration-color: currentColor; }
.files { color: var(--muted); margin: 0; max-width: none; }
.lead { color: var(--muted); font-size: .9rem; }
.name, code, .files bdi {
  font-family: ui-monospace, "SF Mono", "Cascadia Mono", "Liberation Mono", "DejaVu Sans Mono", monospace;
  font-size: .92em; overflow-wrap: anywhere;
}
.op, .unit, .none { color: var(--muted); }
nav {
  position: sticky; top: 0; z-index: 2; background: var(--page);
  border-bottom: 1px solid var(--rule); margin-top: 1.2rem;
}
nav ul {
  list-style: none; max-width: 1200px; margin: 0 auto; padding: .55rem 1.5rem; display: flex;
  flex-wrap: wrap; gap: .2rem 1.4rem; font-size: .88rem;
}
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
nav span { color: var(--muted); }
.cards {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(172px, 1fr)); gap: .9rem;
  margin: 1.5rem 0 0;
}
.card, figure, .panel {
  background: var(--surface); border: 1px solid var(--rule); border-radius: 8px; padding: .9rem 1.05rem;
}
.card dt { font-size: .8rem; color: var(--muted); }
.card { margin: 0; }
.card dd { margin: 0; }
.card .value { font-size: 1.5rem; line-height: 1.35; font-weight: 600; letter-spacing: -.015em; }
.card .unit { font-size: .9rem; font-weight: 400; letter-spacing: 0; }
.card .more { font-size: .82rem; color: var(--muted); }
.card .name {
  display: inline-block; max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  vertical-align: bottom;
}
.card wbr { display: none; }
.notes { border-left: 3px solid var(--fair); margin-top: .9rem; }
.notes ul { margin: 0; padding-left: 1.1rem; }
.table { padding: .3rem 1.05rem .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th {
  text-align: left; font-weight: 500; font-size: .8rem; color: var(--muted); padding: .55rem .6rem .45rem;
  border-bottom: 1px solid var(--rule); vertical-align: bottom; background: var(--surface);
}
td { padding: .38rem .6rem; border-bottom: 1px solid var(--grid); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.layers thead th { position: sticky; top: 2.45rem; z-index: 1; }
.layers tr { scroll-margin-top: 3rem; }
.layers td { line-height: 1.35; }
.layers .op { display: block; font-size: .92em; overflow-wrap: anywhere; }
tr:target td { background: var(--grid); }
.n { text-align: right; white-space: nowrap; }
.rank { color: var(--muted); width: 1%; }
.bars { width: 18%; min-width: 110px; padding-left: 0; }
.bars svg { height: .62rem; margin-top: .33rem; }
.tag {
  display: inline-block; font-size: .74rem; line-height: 1.5; padding: 0 .45em; border-radius: 3px; white-space: nowrap;
  background: var(--grid); color: var(--ink);
}
.tag.low { background: var(--poor-page); color: var(--poor); }
.better { color: var(--good); } .worse { color: var(--poor); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: .9rem; }
figure { margin: 0; min-width: 0; content-visibility: auto; contain-intrinsic-size: auto 330px; }
figure:target { outline: 2px solid var(--bar); outline-offset: 1px; }
figcaption { display: flex; gap: .6rem; justify-content: space-between; align-items: baseline; min-height: 2.6rem; margin-bottom: .35rem; }
figcaption > div { min-width: 0; }
figcaption .op { font-size: .82rem; line-height: 1.35; overflow-wrap: anywhere; }
figcaption .score { white-space: nowrap; font-size: .86rem; font-weight: 600; }
.facts { display: grid; grid-template-columns: auto 1fr; gap: .05rem .9rem; margin: .5rem 0 0; font-size: .82rem; }
.facts dt { color: var(--muted); }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.options td:first-child { width: 30%; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; font-size: .82rem; color: var(--muted); margin: 0 0 .8rem; padding: 0; list-style: none; }
.key li { display: flex; align-items: center; }
.key svg { flex: none; width: 22px; height: 10px; margin-right: .4rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 10px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif; fill: var(--muted); font-variant-numeric: tabular-nums; }
.axis { stroke: var(--muted); stroke-width: 1; }
.tick { stroke: var(--grid); stroke-width: 1; }
.zero { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 2; }
.clip { stroke: var(--line); stroke-width: 1.5; }
.cut { fill: var(--cut); }
.area { fill: var(--fill); }
.outline { fill: none; stroke: var(--line); stroke-width: 1.2; stroke-linejoin: round; }
.fine { fill: var(--bar); } .fair { fill: var(--fair); } .poor { fill: var(--poor); } .exact { fill: var(--exact); }
.track { fill: var(--grid); }
.overview { margin-bottom: .9rem; }
.overview rect { shape-rendering: crispEdges; }
.overview a:hover rect { fill: var(--ink); }
.empty { display: grid; place-items: center; min-height: 7rem; color: var(--muted); font-size: .86rem; background: var(--page); border-radius: 4px; }
footer { margin-top: 3rem; padding-top: 1rem; padding-bottom: 2.5rem; color: var(--muted); font-size: .82rem; }
@media (max-width: 860px) {
  .table { overflow-x: auto; }
  .layers thead th { position: static; }
  .layers td:nth-child(2) { min-width: 10rem; }
  .overview { overflow-x: auto; }
  .overview svg { min-width: 640px; }
}
@media print {
  :root { --page: #ffffff; }
  body { font-size: 11px; }
  nav { display: none; }
  figure { content-visibility: visible; }
  .layers thead th { position: static; }
  figure, .card, tr { break-inside: avoid; }
}
)css";

}  // namespace detent_cli

#endif  // DETENT_CLI_REPORT_STYLE_HPP
