// Nodes and links as a picture, the layers and their growth, and the replicas that an operator adds or drains.
import { html } from "../dom.js";
import { ms, percent, plain } from "../figures.js";
import { useLive } from "../live.js";
import { Action, Command, Failed, useAsked } from "../parts.js";
import { ask, at } from "../server.js";
import { t } from "../texts.js";
import { Layers } from "../layers.js";
import { Links } from "./node.js";

const BOX = { width: 132, height: 28 };
const SHOWN = 120;

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
        <${Action} title=${t("Drain a node")} danger run=${drain} done=${again} about=${t("The node hands over its work, ends, and does not come back. The last replica of a partition is refused.")} fields=${[{ name: "name", label: t("node"), options: drained.map((each) => each.name) }]} /></div>` : html`<p class="empty">${t("Nodes of muster serve are started and stopped on their hosts. This tells the commands: muster cluster replica add")}</p>`}
      <${Picture} nodes=${value.nodes} links=${value.links} />
      ${value.all_nodes > value.nodes.length || value.nodes.length > SHOWN ? html`<p class="dim">${t("Some nodes are not drawn; the table of nodes has all.")}</p>` : null}
      <${Command} words="muster cluster show" /></section>
    <${Layers} layers=${value.layers} growths=${value.growths} changed=${again} />
    <section><h2>${t("Links, the worst first")}</h2><${Links} links=${value.links.slice(0, 50)} /><p class="dim">${t("{count} links in all", { count: value.all_links })}</p><${Command} words="muster links" /></section>`;
}

// Lines are coloured by the worse of loss and round trip, in three grades; beyond the limits of [links], or down, they are marked as well.
const LOSS = [0.001, 0.01];
const RTT_MS = [5, 50];
const grade = (value, bounds) => bounds.filter((bound) => (value || 0) >= bound).length;

function Grades() {
  const texts = [t("loss below {loss} and round trip below {time}", { loss: percent(LOSS[0]), time: ms(RTT_MS[0]) }),
    t("loss below {loss} and round trip below {time}", { loss: percent(LOSS[1]), time: ms(RTT_MS[1]) }), t("more than that"), t("beyond a limit"), t("down")];
  return html`<p class="dim legend">${["grade-0", "grade-1", "grade-2", "warn", "fail"].map((each, at) => html`<span><svg class="topology" viewBox="0 0 26 12" aria-hidden="true"><line class=${each} x1="0" y1="6" x2="26" y2="6" /></svg> ${texts[at]} </span>`)}</p>`;
}

// Nodes stand on an ellipse, replicas of a role beside each other, so that every link is a line of its own.
function Picture({ nodes, links }) {
  const drawn = nodes.slice(0, SHOWN);
  const high = Math.max(170, drawn.length * 12);
  const wide = high * 2;
  const places = new Map(drawn.map((node, index) => {
    const turn = (2 * Math.PI * index) / drawn.length - Math.PI / 2;
    return [node.name, { x: wide + 90 + wide * Math.cos(turn), y: high + 30 + high * Math.sin(turn), node }];
  }));
  const lines = links.filter((each) => places.has(each.sender) && places.has(each.receiver)).reverse();
  const kind = (link) => (!link.up ? "fail" : link.beyond.length ? "warn" : `grade-${Math.max(grade(link.loss, LOSS), grade(link.rtt_ms, RTT_MS))}`);
  const bad = drawn.filter((each) => each.state !== "ready");
  const about = t("{nodes} nodes, {links} links, {bad} not ready", { nodes: drawn.length, links: lines.length, bad: bad.length });
  const told = (link) => `${link.sender} → ${link.receiver}: ${ms(link.rtt_ms)} ${percent(link.loss)}`;
  return html`<p role="status">${about}</p><svg class="topology" viewBox="0 0 ${2 * wide + 180} ${2 * high + 60}" role="img" aria-label=${about}>
    ${lines.map((link) => { const a = places.get(link.sender); const b = places.get(link.receiver); return html`<line class=${kind(link)} x1=${a.x} y1=${a.y} x2=${b.x} y2=${b.y}><title>${plain(told(link))}</title></line>`; })}
    ${[...places.values()].map(({ x, y, node }) => html`<g><rect x=${x - BOX.width / 2} y=${y - BOX.height / 2} width=${BOX.width} height=${BOX.height} rx="5" class=${node.state === "ready" ? "" : "bad"} />
      <text x=${x} y=${y + 4} text-anchor="middle">${plain(node.name.length > 20 ? `${node.name.slice(0, 19)}…` : node.name)}</text><title>${plain(`${node.name}: ${node.state}`)}</title></g>`)}</svg><${Grades} />`;
}
