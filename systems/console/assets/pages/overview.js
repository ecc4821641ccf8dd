// All systems at a glance: health, alarms with their mend, an hour of curves, the nodes.
import { html } from "../dom.js";
import { Curve } from "../curve.js";
import { age, bytes, count, limit, ms, percent, plain, rate } from "../figures.js";
import { useLive, usePast } from "../live.js";
import { Badge, Command, Own, Table } from "../parts.js";
import { ask, at, query } from "../server.js";
import { t } from "../texts.js";

export function Overview() {
  const { sample } = useLive();
  if (!sample) return html`<h1>${t("Overview")}</h1><p class="empty">${t("The first reading of the nodes takes a few seconds.")}</p>`;
  const total = sample.total;
  const tiles = [
    [t("nodes ready"), `${total.ready} / ${total.nodes}`], [t("published"), rate(total.published_per_s)], [t("delivered"), rate(total.delivered_per_s)],
    [t("dropped"), rate(total.dropped_per_s)], [t("members"), count(total.members)], [t("CPU of a core"), percent(total.cpu)],
    [t("memory"), bytes(total.rss_bytes)], [t("latest loop"), ms(1000 * total.lag_s)]];
  return html`<h1>${t("Overview")}: ${plain(sample.instance)} ${plain(sample.version)}</h1>
    <div class="tiles">${tiles.map(([name, value]) => html`<div class="tile"><span>${name}</span><b>${value}</b></div>`)}</div>
    <div class="wide">
      <section><h2>${t("Systems")}</h2><table><tbody>${sample.systems.map((each) => html`<tr><th scope="row">${each.title}</th>
        <td><${Badge} level=${each.ready === each.nodes ? "ok" : each.ready ? "warn" : "fail"} text=${each.ready === each.nodes ? t("serves") : each.ready ? t("serves in part") : t("does not serve")} /></td>
        <td>${t("{ready} of {nodes} nodes are ready", each)}${each.silent.length ? html`: <${Own} text=${each.silent.join(", ")} />` : null}</td></tr>`)}</tbody></table>
        <${Command} words="muster status" /></section>
      <section aria-live="polite"><h2>${t("Alarms")}</h2>${sample.alarms.length ? html`<table><tbody>${sample.alarms.map((each) => html`<tr>
        <td><${Badge} level=${each.level} text=${each.level === "fail" ? t("fails") : t("warns")} /></td><td><${Own} text=${each.text} /><br /><span class="dim">→ <${Own} text=${each.mend} /></span></td></tr>`)}</tbody></table>`
        : html`<p class="empty">${t("No alarm. All nodes serve, and no counter of trouble has grown.")}</p>`}
        <${Command} words="muster doctor" /></section></div>
    <${Curves} />
    <section><h2>${t("Nodes")}</h2><${Nodes} stamp=${sample.at} /><${Command} words="muster top" /></section>`;
}

function Curves() {
  const past = usePast();
  if (!past) return html`<p class="empty">${t("Curves begin with the second reading.")}</p>`;
  const of = (name, label) => ({ label, values: past[name] });
  const curves = [
    [t("Messages a second"), [of("published", t("published")), of("delivered", t("delivered")), of("dropped", t("dropped"))], rate],
    [t("Probes through rooms"), [of("probe_p50_ms", "p50"), of("probe_p99_ms", "p99")], ms],
    [t("Members of rooms"), [of("members", t("members"))], count],
    [t("CPU, in cores"), [of("cpu", t("cores"))], (value) => count(value, 2)]];
  return html`<div class="wide">${curves.map(([title, series, show]) => html`<${Curve} key=${title} title=${title} times=${past.at} series=${series} show=${show} />`)}</div>`;
}

export function Nodes({ stamp }) {
  const columns = [
    { key: "name", title: t("node"), show: (row) => html`<a href=${`#/nodes/${encodeURIComponent(row.name)}`}><${Own} text=${row.name} /></a>` },
    { key: "role", title: t("role") },
    { key: "state", title: t("state"), show: (row) => html`<${Badge} level=${row.state === "ready" ? "ok" : row.state === "no answer" ? "fail" : "warn"} text=${plain(row.state)} />` },
    { key: "limit", title: t("limited by"), show: (row) => (row.limit && row.limit.what !== "nothing" ? html`<${Badge} level="warn" text=${limit(row.limit)} />` : limit(row.limit)) },
    { key: "version", title: t("version") },
    { key: "age_s", title: t("age"), number: true, show: (row) => age(row.age_s) },
    { key: "cpu", title: t("CPU"), number: true, show: (row) => percent(row.cpu) },
    { key: "rss_bytes", title: t("memory"), number: true, show: (row) => bytes(row.rss_bytes) },
    { key: "in_per_s", title: t("in"), number: true, show: (row) => rate(row.in_per_s) },
    { key: "out_per_s", title: t("out"), number: true, show: (row) => rate(row.out_per_s) },
    { key: "lag_ms", title: t("late"), number: true, show: (row) => ms(row.lag_ms) },
    { key: "dropped_per_s", title: t("drops"), number: true, show: (row) => (row.dropped_per_s ? `${rate(row.dropped_per_s)} ${plain(row.dropped_most || "")}` : "") }];
  const sorts = ["name", "role", "state", "age_s", "cpu", "rss_bytes", "in_per_s", "out_per_s", "lag_ms", "dropped_per_s"];
  return html`<${Table} name=${t("Nodes")} search sorts=${sorts} sort="role" keys=${[stamp]} columns=${columns} empty=${t("No node matches.")}
    load=${({ search, sort, offset, limit }) => ask("GET", `api/v1/console/nodes${query({ search, sort, offset, limit })}`)} />`;
}
