// A room's paths through the nodes as a picture: a question from this console by each proxy to a broker and its gateways,
// with the time of each hop.
import { html } from "./dom.js";
import { ms, plain } from "./figures.js";
import { Command, Failed, Own, useAsked } from "./parts.js";
import { ask, query } from "./server.js";
import { t } from "./texts.js";

const BOX = { width: 150, height: 28, across: 260, down: 44 };
const CONSOLE = " console";

export function Paths({ path, name, round }) {
  const { value, error } = useAsked(() => ask("GET", `${path}/trace${query({ wait: 5 })}`), [path, round]);
  return html`<section><h2>${t("Path through the nodes")}</h2><${Failed} error=${error} />
    ${value ? value.paths.some((each) => each.hops.length) ? html`<${Picture} paths=${value.paths} />`
      : html`<p class="empty">${t("No node answered in time.")}</p>` : html`<p class="dim" role="status">${t("Loading …")}</p>`}
    ${value && value.proxies > value.paths.length ? html`<p class="dim">${t("{asked} of {all} proxies were asked.", { asked: value.paths.length, all: value.proxies })}</p>` : null}
    <p class="dim">${t("Each time is that of a question and its answer, by the clock of the node that asks.")}</p>
    <${Command} words=${`muster trace ${name}`} /></section>`;
}

// The hops as lines {from, to, ms}, each pair once with its slowest time, and the column of each node.
function drawn(paths) {
  const columns = [[CONSOLE], [], [], []];
  const lines = new Map();
  const put = (column, node) => { if (!columns[column].includes(node)) columns[column].push(node); };
  const line = (from, to, took) => {
    const key = JSON.stringify([from, to]);
    const known = lines.get(key);
    if (!known || (took !== null && took > (known.ms ?? -1))) lines.set(key, { from, to, ms: took });
  };
  for (const { proxy, ms: took, hops } of paths) {
    put(1, proxy);
    line(CONSOLE, proxy, took);
    for (const hop of hops) {
      put(hop.asked_by === proxy ? 2 : 3, hop.node);
      line(hop.asked_by, hop.node, hop.ms);
    }
  }
  return { columns, lines: [...lines.values()] };
}

function Picture({ paths }) {
  const { columns, lines } = drawn(paths);
  const rows = Math.max(...columns.map((column) => column.length));
  const high = rows * BOX.down + 26;
  const places = new Map();
  columns.forEach((column, at) => column.forEach((node, row) => {
    places.set(`${at} ${node}`, { x: BOX.width / 2 + 4 + at * BOX.across, y: 26 + (row + 0.5) * (rows / column.length) * BOX.down, node, at });
  }));
  const place = (node, from) => [0, 1, 2, 3].filter((at) => at >= from).map((at) => places.get(`${at} ${node}`)).find(Boolean);
  const titles = [t("asks"), t("proxy"), t("broker"), t("gateways")];
  const called = (node) => (node === CONSOLE ? t("this console") : plain(node));
  const took = (each) => (each.ms === null ? t("no answer") : ms(each.ms));
  const about = lines.map((each) => `${called(each.from)} → ${called(each.to)} ${took(each)}`).join(", ");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${t("Path through the nodes")}><svg class="topology paths" viewBox="0 0 ${3 * BOX.across + BOX.width + 8} ${high}" role="img" aria-label=${about}>
    ${titles.map((title, at) => html`<text class="dim" x=${BOX.width / 2 + 4 + at * BOX.across} y="14" text-anchor="middle">${title}</text>`)}
    ${lines.map((each) => { const a = place(each.from, 0); const b = place(each.to, a ? a.at + 1 : 0); if (!a || !b) return null; const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
      return html`<g><line class=${each.ms === null ? "fail" : ""} x1=${a.x + BOX.width / 2} y1=${a.y} x2=${b.x - BOX.width / 2} y2=${b.y} /><text class="hop" x=${middle.x} y=${middle.y - 4} text-anchor="middle">${took(each)}</text><title>${`${called(each.from)} → ${called(each.to)}: ${took(each)}`}</title></g>`; })}
    ${[...places.values()].map(({ x, y, node }) => html`<g><rect x=${x - BOX.width / 2} y=${y - BOX.height / 2} width=${BOX.width} height=${BOX.height} rx="5" />
      <text x=${x} y=${y + 4} text-anchor="middle">${called(node).length > 20 ? `${called(node).slice(0, 19)}…` : called(node)}</text><title>${called(node)}</title></g>`)}</svg></div>`;
}
