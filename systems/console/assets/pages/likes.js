// Rankings, one item with its newest likers and its curve, and the partitions with their nodes.
import { Curve } from "../curve.js";
import { html, useState } from "../dom.js";
import { count, plain } from "../figures.js";
import { useLive } from "../live.js";
import { Imports, Partitions } from "../partitions.js";
import { Action, Ask, Command, Failed, Own, Table, useAsked } from "../parts.js";
import { ask, at, query } from "../server.js";
import { t } from "../texts.js";

const link = (item) => `#/likes/${encodeURIComponent(item)}`;

export function Likes({ rest }) {
  const [window, setWindow] = useState("");
  const [field, setField] = useState("");
  const [round, again] = useState(0);
  const load = async ({ after, limit }) => {
    const found = await ask("GET", `${field ? at`api/v1/ranks/${field}` : "api/v1/ranks"}${query({ after, limit, window })}`);
    return { rows: found.items, next: found.next };
  };
  const columns = [
    { key: "rank", title: t("rank"), number: true, show: (row) => count(row.rank + 1) },
    { key: "item", title: t("item"), show: (row) => html`<a href=${link(row.item)}><${Own} text=${row.item} /></a>` },
    { key: "score", title: t("likes"), number: true, show: (row) => count(row.score, 1) }];
  const filters = html`<select aria-label=${t("Window")} onChange=${(event) => setWindow(event.target.value)}>${["", "1h", "24h", "7d"].map((each) => html`<option value=${each}>${each || t("all time")}</option>`)}</select>`;
  return html`<h1>${t("Likes")}</h1>
    <section><${Ask} label=${t("Open")} fields=${[{ name: "item", label: t("Item, as KIND:ID"), value: rest[0] || "", required: true }]} submit=${({ item }) => { location.hash = link(item); }} />
      ${rest.length ? html`<${Item} item=${rest[0]} round=${round} changed=${() => again((was) => was + 1)} />` : null}</section>
    <section><h2>${t("Ranking")}</h2><${Ask} label=${t("Show")} fields=${[{ name: "field", label: t("Kind or field; empty: all items") }]} submit=${(asked) => setField(asked.field)} />
      <${Table} name=${t("Ranking")} columns=${columns} load=${load} filters=${filters} keys=${[window, field, round]} empty=${t("Nothing is liked yet. Try: muster like 7 post:1")} />
      <${Command} words="muster rank" /></section>
    <${Partitions} /><${Imports} />`;
}

function Item({ item, round, changed }) {
  const [kind, ...rest] = item.split(":");
  const path = at`api/v1/likes/${kind}/${rest.join(":")}`;
  const { value, error } = useAsked(() => ask("GET", path), [path, round]);
  const toggle = (method) => async ({ user }) => {
    const found = await ask(method, `${path}/${encodeURIComponent(user)}`);
    return t("{count} likes now.", { count: count(found.count) });
  };
  const fields = [{ name: "user", label: t("Number of the user"), required: true, autocomplete: "off" }];
  return html`<h2><${Own} text=${item} /></h2><${Failed} error=${error} />
    ${value ? html`<div class="tiles"><div class="tile"><span>${t("likes")}</span><b>${count(value.count)}</b></div>
      ${value.ranks.map((each) => html`<div class="tile"><span>${t("rank in {field}", { field: plain(each.field || t("all items")) })}</span><b>${count(each.rank + 1)} / ${count(each.of)}</b></div>`)}
      ${Object.entries(value.windows).map(([name, score]) => html`<div class="tile"><span>${plain(name)}</span><b>${count(score, 1)}</b></div>`)}</div>
      <p>${t("Newest likers:")} <span class="mono">${value.newest.map((each) => html`<${Own} text=${each} /> `)}</span></p>` : null}
    <${Past} path=${path} round=${round} />
    <div class="row"><${Action} title=${t("Like for a user")} fields=${fields} run=${toggle("PUT")} done=${changed} />
      <${Action} title=${t("Take a like back")} danger fields=${fields} run=${toggle("DELETE")} done=${changed} /></div>
    <${Command} words=${`muster likes show ${item}`} />`;
}

// The count over time. Likes keep no history of an item, so it begins with the first look at the item.
function Past({ path, round }) {
  const { sample } = useLive();
  const { value, error } = useAsked(() => ask("GET", `${path}/curve`), [path, round, sample && sample.at]);
  return html`<${Failed} error=${error} />${value ? html`<${Curve} title=${t("Likes over time")} times=${value.at} series=${[{ label: t("likes"), values: value.count }]} show=${count} />
    <p class="dim">${t("The curve begins with the first look at the item and has at most one hour.")}</p>` : null}`;
}
