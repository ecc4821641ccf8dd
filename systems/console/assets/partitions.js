// The partitions of likes with their slots, nodes and log positions; how they move; and imports from a Redis.
import { html, useState } from "./dom.js";
import { count, plain, time } from "./figures.js";
import { useLive } from "./live.js";
import { Action, Badge, Command, Failed, Own, Table, useAsked } from "./parts.js";
import { ask, at, query } from "./server.js";
import { t } from "./texts.js";

export function Partitions() {
  const { sample } = useLive();
  const { value, error, again } = useAsked(() => ask("GET", "api/v1/likes/partitions"), [sample && sample.at]);
  const add = async () => {
    const nodes = await ask("POST", "api/v1/console/topology/nodes", { role: "likes" });
    return t("Started: {names}.", { names: nodes.map((each) => each.name).join(", ") });
  };
  const drain = async ({ name }) => {
    await ask("DELETE", at`api/v1/console/topology/nodes/${name}`);
    return t("{name} drains and ends. Other replicas take its work.", { name });
  };
  if (!value) return html`<section><h2>${t("Partitions")}</h2><${Failed} error=${error} /></section>`;
  const named = value.nodes.map((each) => each.name);
  const all = value.partitions.length;
  return html`<section><h2>${t("Partitions")}</h2><${Failed} error=${error} />
    <div class="row"><${Action} title=${t("Move partitions to a new node")} run=${add} done=${again} about=${t("One more node of likes starts on this machine. It takes about {share} of the {all} partitions from the others, each from its log. Each pauses for a moment.", { share: Math.floor(all / (named.length + 1)), all })} />
      <${Action} title=${t("Move all partitions off a node")} danger run=${drain} done=${again} about=${t("The other nodes take its partitions in equal parts; then it ends and does not come back. The last node is refused.")} fields=${[{ name: "name", label: t("node"), options: named }]} /></div>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("Nodes of likes")}><table><thead><tr><th scope="col">${t("node")}</th><th scope="col">${t("state")}</th>${[t("partitions"), t("items"), t("likes"), t("connections")].map((each) => html`<th scope="col" class="num">${each}</th>`)}</tr></thead>
      <tbody>${value.nodes.map((each) => html`<tr key=${each.name}><td><${Own} text=${each.name} /></td><td><${Badge} level=${each.state === "ready" ? "ok" : "warn"} text=${plain(each.state)} /> <${Own} text=${each.error} /></td><td class="num">${count(each.partitions)}</td><td class="num">${count(each.items)}</td><td class="num">${count(each.likes)}</td><td class="num">${count(each.connections)}</td></tr>`)}</tbody></table></div>
    <div class="tail scroll" tabindex="0" role="region" aria-label=${t("Partitions")}><table><thead><tr><th scope="col" class="num">${t("partition")}</th><th scope="col">${t("slots")}</th><th scope="col">${t("node")}</th>${[t("items"), t("likes"), t("log position"), t("not in the database yet")].map((each) => html`<th scope="col" class="num">${each}</th>`)}</tr></thead>
      <tbody>${value.partitions.map((each) => html`<tr key=${each.partition}><td class="num">${each.partition}</td><td>${each.first_slot}–${each.last_slot}</td><td>${each.node ? html`<${Own} text=${each.node} />` : html`<${Badge} level="fail" text=${t("no node answers")} />`}</td>
        <td class="num">${count(each.items)}</td><td class="num">${count(each.likes)}</td><td class="num">${count(each.offset)}</td><td class="num">${count(each.not_written_behind)}</td></tr>`)}</tbody></table></div>
    <${Command} words="muster likes partitions" /></section>`;
}

export function Imports() {
  const [round, again] = useState(0);
  const { sample } = useLive();
  const changed = () => again((was) => was + 1);
  const begin = async ({ url, pattern }) => { await ask("POST", "api/v1/likes/imports", { url, pattern }); return t("The import has begun."); };
  const load = async () => { const found = await ask("GET", "api/v1/likes/imports"); return { rows: found.imports, total: found.imports.length }; };
  const states = { running: t("runs"), done: t("done"), failed: t("failed") };
  const columns = [
    { key: "source", title: t("source"), show: (row) => html`<span class="mono"><${Own} text=${`${row.source} ${row.pattern}`} /></span>` },
    { key: "state", title: t("state"), show: (row) => html`<${Badge} level=${row.state === "failed" ? "fail" : row.state === "done" ? "ok" : "warn"} text=${states[row.state]} /> <${Own} text=${row.error} />` },
    { key: "began", title: t("started"), show: (row) => time(row.began * 1000) },
    { key: "keys", title: t("keys"), number: true, show: (row) => `${count(row.keys)} / ${count(row.of)}` },
    { key: "likes", title: t("likes"), number: true, show: (row) => count(row.likes) },
    { key: "new", title: t("new"), number: true, show: (row) => count(row.new) },
    { key: "act", title: t("actions"), show: (row) => (row.state === "running" ? html`<${Action} title=${t("Stop import {id}", row)} label=${t("Stop")} danger done=${changed} about=${t("Likes that it has set stay.")} run=${async () => { await ask("DELETE", `api/v1/likes/imports${query({ id: row.id })}`); }} />` : null) }];
  return html`<section><h2>${t("Imports")}</h2><div class="row"><${Action} title=${t("Import from a Redis")} run=${begin} done=${changed} about=${t("Each bit of 1 of a bitmap becomes a like of the item with the key's name. The Redis is only read.")}
      fields=${[{ name: "url", label: t("URL of the Redis"), hint: "redis://HOST:6379/0", required: true, autocomplete: "off" }, { name: "pattern", label: t("Pattern of the keys, as for SCAN"), hint: "share:*", required: true, autocomplete: "off" }]} /></div>
    <${Table} name=${t("Imports")} columns=${columns} load=${load} keys=${[round, sample && sample.at]} empty=${t("Nothing was imported since this console started.")} /><${Command} words="muster likes import redis://HOST:6379/0 'share:*'" /></section>`;
}
