// Nodes and links as a picture, and the replicas that an operator adds or drains.
import { html } from "../dom.js";
import { plain } from "../figures.js";
import { useLive } from "../live.js";
import { Action, Command, Failed, Own, isOperator, useAsked } from "../parts.js";
import { ask, at } from "../server.js";
import { t } from "../texts.js";
import { Links } from "./node.js";

const WIDTH = 190;
const HEIGHT = 46;
const SHOWN = 60;

export function Topology() {
  const { sample } = useLive();
  const { value, error, again } = useAsked(() => ask("GET", "api/v1/console/topology"), [sample && sample.at]);
  if (!value) return html`<h1>${t("Topology")}</h1><${Failed} error=${error} />`;
  const roles = value.addable.map((role) => ({ value: role, text: role }));
  const add = async ({ role, partition }) => {
    const nodes = await ask("POST", "api/v1/console/topology/nodes", { role, partition: Number(partition || 0) });
    return t("Started: {names}.", { names: nodes.map((each) => each.name).join(", ") });
  };
  const drain = async ({ name }) => {
    await ask("DELETE", at`api/v1/console/topology/nodes/${name}`);
    return t("{name} drains and ends. Other replicas take its work.", { name });
  };
  const drained = value.nodes.filter((each) => value.addable.includes(each.role) || value.partitioned.includes(each.role));
  return html`<h1>${t("Topology")}</h1>
    <section>${value.addable.length ? html`<div class="row">
        <${Action} title=${t("Add a node")} strong run=${add} done=${again} about=${t("One more replica starts on this machine and takes its share. Clients notice nothing.")} fields=${[{ name: "role", label: t("role"), options: roles }, { name: "partition", label: t("Partition, of a layer with partitions"), type: "number", value: "0" }]} />
        <${Action} title=${t("Drain a node")} danger run=${drain} done=${again} about=${t("The node hands over its work, ends, and does not come back. The last replica of a partition is refused.")} fields=${[{ name: "name", label: t("node"), options: drained.map((each) => each.name) }]} /></div>` : html`<p class="empty">${t("Nodes of muster serve are started and stopped on their hosts: muster cluster add-replica tells the command.")}</p>`}
      <${Picture} nodes=${value.nodes} links=${value.links} />
      ${value.all_nodes > value.nodes.length || value.nodes.length > SHOWN * 8 ? html`<p class="dim">${t("Some nodes are not drawn; the table of nodes has all.")}</p>` : null}
      <${Command} words="muster cluster show" /></section>
    <section><h2>${t("Links, the worst first")}</h2><${Links} links=${value.links.slice(0, 50)} /><p class="dim">${t("{count} links in all", { count: value.all_links })}</p><${Command} words="muster links" /></section>`;
}

function Picture({ nodes, links }) {
  const roles = [...new Set(nodes.map((each) => each.role))];
  const places = new Map();
  const columns = Math.max(1, Math.min(6, Math.max(...roles.map((role) => nodes.filter((each) => each.role === role).length))));
  let line = 0;
  const titles = [];
  for (const role of roles) {
    const mine = nodes.filter((each) => each.role === role).slice(0, SHOWN);
    titles.push([role, line]);
    mine.forEach((node, index) => places.set(node.name, { x: 120 + (index % columns) * WIDTH, y: 14 + (line + Math.floor(index / columns)) * HEIGHT, node }));
    line += Math.ceil(mine.length / columns);
  }
  const width = 130 + columns * WIDTH + 60;
  const drawn = links.filter((each) => places.has(each.sender) && places.has(each.receiver));
  const kind = (link) => (!link.up ? "fail" : link.beyond.length ? "warn" : "");
  const bad = nodes.filter((each) => each.state !== "ready").map((each) => `${each.name} ${each.state}`);
  const about = t("{nodes} nodes, {links} links, {bad} not ready", { nodes: nodes.length, links: drawn.length, bad: bad.length });
  return html`<svg class="topology" viewBox="0 0 ${width} ${line * HEIGHT + 20}" role="img" aria-label=${about}>
    ${drawn.map((link) => { const a = places.get(link.sender); const b = places.get(link.receiver); const bend = a.x === b.x ? 30 : 0; return html`<line class=${kind(link)} x1=${a.x + 150} y1=${a.y + 15} x2=${b.x + 150 + bend} y2=${b.y + 15}><title>${plain(`${link.sender} → ${link.receiver}: ${link.rtt_ms === null ? "" : `${link.rtt_ms.toFixed(1)} ms`} ${link.loss === null ? "" : `${(100 * link.loss).toFixed(1)} %`}`)}</title></line>`; })}
    ${titles.map(([role, at]) => html`<text x="6" y=${14 + at * HEIGHT + 19} class="dim">${role}</text>`)}
    ${[...places.values()].map(({ x, y, node }) => html`<g><rect x=${x} y=${y} width="150" height="30" rx="5" class=${node.state === "ready" ? "" : "bad"} /><text x=${x + 8} y=${y + 19}>${plain(node.name.length > 22 ? `${node.name.slice(0, 21)}…` : node.name)}</text><title>${plain(`${node.name}: ${node.state}`)}</title></g>`)}</svg>`;
}
