// Clients of the fleet, continuous tasks, and runs with their results as they arrive.
import { html, useEffect, useState } from "../dom.js";
import { count, plain, time } from "../figures.js";
import { PlaceMap } from "../map.js";
import { Action, Ask, Badge, Command, Failed, Own, Table, useAsked } from "../parts.js";
import { ask, at, query } from "../server.js";
import { t } from "../texts.js";

export function Fleet({ rest }) {
  if (rest[0] === "runs" && rest[1]) return html`<${Run} name=${rest[1]} />`;
  return html`<h1>${t("Fleet")}</h1><${Measure} /><${Tasks} /><${Wheel} /><${Runs} /><${PlaceMap} /><div class="wide"><${Places} /><${Fairness} /></div><${Clients} />`;
}

const clock = (minute) => new Date(60000 * minute).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// The last hour and the next one: a bar for each minute, with the figures of the minute in its title.
function Wheel() {
  const { value, error, again } = useAsked(() => ask("GET", "api/v1/fleet/wheel"), []);
  const most = value ? Math.max(1, ...value.minutes.map((each) => Math.max(each.due, each.sent))) : 1;
  const total = (rows, name) => rows.reduce((sum, each) => sum + each[name], 0);
  const over = value ? value.minutes.filter((each) => each.minute <= value.last_minute) : [];
  const next = value ? value.minutes.filter((each) => each.minute > value.last_minute) : [];
  const said = t("{sent} clients asked in the last hour, {missed} runs missed; {due} samples due in the next hour", { sent: count(total(over, "sent")), missed: count(total(over, "missed")), due: count(total(next, "due")) });
  return html`<section><h2>${t("Wheel of 60 minutes")}</h2><div class="row"><button type="button" onClick=${again}>${t("Reload")}</button></div><${Failed} error=${error} />
    ${value ? html`<p role="status">${said}</p><div class="bars"><svg viewBox="0 0 ${8 * value.minutes.length} 100" preserveAspectRatio="none" role="img" aria-label=${said}>
      ${value.minutes.map((each, index) => { const past = each.minute <= value.last_minute; const high = Math.max(each.due || each.sent || each.missed ? 3 : 0, (100 * (past ? each.sent : each.due)) / most); return html`<rect class=${each.missed ? "missed" : past ? "past" : "next"} x=${8 * index} y=${100 - high} width="7" height=${high}><title>${`${clock(each.minute)}: ${t("{due} due, {sent} asked, {missed} missed", each)} ${plain(each.names.join(", "))}`}</title></rect>`; })}</svg></div>` : null}
    <${Command} words="muster fleet wheel" /></section>`;
}

function Runs() {
  const load = async ({ limit, after }) => {
    const found = await ask("GET", `api/v1/fleet/runs${query({ limit, after })}`);
    return { rows: found.runs, next: found.next };
  };
  const columns = [
    { key: "run", title: t("run"), show: (row) => html`<a href=${`#/fleet/runs/${encodeURIComponent(row.run)}`}><${Own} text=${row.run} /></a>` },
    { key: "kind", title: t("kind"), show: (row) => html`<${Own} text=${row.kind} />` },
    { key: "state", title: t("state"), show: (row) => html`<${Badge} level=${row.missed || row.reason ? "warn" : "ok"} text=${plain(row.state)} /> <${Own} text=${row.reason} />` },
    { key: "started_ms", title: t("started"), show: (row) => time(row.started_ms) },
    ...[["wanted", t("wanted")], ["done", t("done")], ["replaced", t("replaced")], ["missed", t("missed")]].map(([key, title]) => ({ key, title, number: true, show: (row) => count(row[key]) }))];
  return html`<section><h2>${t("Runs")}</h2><${Table} name=${t("Runs")} columns=${columns} load=${load} empty=${t("No run has started yet.")} /><${Command} words="muster fleet runs" /></section>`;
}

function Bars({ name, rows, of }) {
  const most = Math.max(1, ...rows.map(([, number]) => number));
  return html`<div class="tail scroll" tabindex="0" role="region" aria-label=${name}><table><thead><tr><th scope="col">${of}</th><th scope="col" class="num">${t("clients")}</th><th></th></tr></thead><tbody>${rows.map(([value, number]) => html`<tr><th scope="row"><${Own} text=${value} /></th>
    <td class="num">${count(number)}</td><td><meter min="0" max=${most} value=${number} aria-label=${plain(value)}></meter></td></tr>`)}</tbody></table></div>`;
}

function Places() {
  const [by, set] = useState("province");
  const { value, error } = useAsked(() => ask("GET", `api/v1/fleet/counts${query({ by })}`), [by]);
  const names = { country: t("country"), province: t("province"), city: t("city"), carrier: t("carrier"), version: t("version"), tag: t("tag") };
  return html`<section><h2>${t("Clients by place")}</h2><div class="row"><select aria-label=${t("Count by")} onChange=${(event) => set(event.target.value)}>${Object.entries(names).map(([each, text]) => html`<option value=${each} selected=${each === by}>${text}</option>`)}</select>
      ${value ? html`<span role="status">${t("{count} clients", { count: count(value.clients) })}${value.more ? `, ${t("{more} more values", value)}` : ""}</span>` : null}</div><${Failed} error=${error} />
    ${value && value.values.length ? html`<${Bars} name=${t("Clients by place")} rows=${value.values} of=${names[by]} />` : html`<p class="empty">${t("No client tells this.")}</p>`}
    <${Command} words=${`muster fleet counts ${by}`} /></section>`;
}

function Fairness() {
  const [where, set] = useState("");
  const { value, error } = useAsked(() => ask("GET", `api/v1/fleet/fairness${query({ where })}`), [where]);
  return html`<section><h2>${t("Fairness")}</h2><${Ask} label=${t("Select")} fields=${[{ name: "where", label: t("Selector; empty: all clients") }]} submit=${(asked) => set(asked.where)} /><${Failed} error=${error} />
    ${value ? html`<p>${t("{members} clients, round {round}; {owed} of them still wait for their turn in it. Lightest weight {lightest}, mean {mean_weight}.", value)}</p>
      <${Bars} name=${t("Clients by number of picks")} rows=${Object.entries(value.picked)} of=${t("picks")} />` : null}
    <${Command} words="muster fleet fairness" /></section>`;
}

function Measure() {
  const run = async ({ kind, target, where, pick }) => {
    const begun = await ask("POST", "api/v1/fleet/runs", { kind, target, where, pick: Number(pick) });
    location.hash = `#/fleet/runs/${encodeURIComponent(begun.run)}`;
    return t("Run {run} has begun.", begun);
  };
  return html`<section><div class="row"><${Action} title=${t("Ask clients now")} strong run=${run} fields=${[
    { name: "kind", label: t("Kind of measurement"), value: "ping", required: true }, { name: "target", label: t("Target for the clients"), value: "" },
    { name: "where", label: t("Selector; empty: all clients"), value: "" }, { name: "pick", label: t("Number of clients"), type: "number", value: "10", required: true }]} /></div>
    <${Ask} label=${t("Open")} fields=${[{ name: "run", label: t("Name of a run or task"), required: true }]} submit=${({ run: name }) => { location.hash = `#/fleet/runs/${encodeURIComponent(name)}`; }} />
    <${Command} words="muster fleet run ping --pick 10" /></section>`;
}

function Run({ name }) {
  const [rows, set] = useState([]);
  const [state, setState] = useState("");
  const [asked, setAsked] = useState(0);
  const draws = useAsked(() => ask("GET", at`api/v1/fleet/runs/${name}/draws`), [name, state]);
  useEffect(() => {
    const source = new EventSource(at`api/v1/fleet/runs/${name}/events`);
    source.onopen = () => { set([]); setAsked(0); };
    source.addEventListener("asked", (event) => setAsked((was) => was + JSON.parse(event.data).clients.length));
    source.addEventListener("result", (event) => set((was) => [...was, JSON.parse(event.data)].slice(-1000)));
    source.addEventListener("ended", () => { setState("ended"); source.close(); });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) setState((was) => was || "away"); };
    return () => source.close();
  }, [name]);
  return html`<h1><a href="#/fleet">${t("Fleet")}</a>: <${Own} text=${name} /></h1>
    <section><p><${Badge} level=${state === "away" ? "fail" : "ok"} text=${state === "ended" ? t("ended") : state === "away" ? t("does not answer") : t("runs")} /> <span role="status">${t("{results} results of {asked} asked clients", { results: count(rows.length), asked: count(asked) })}</span></p>
      <div class="tail scroll" tabindex="0" role="region" aria-label=${t("Results")}><table><thead><tr><th scope="col">${t("client")}</th><th scope="col">${t("result")}</th></tr></thead><tbody>${rows.map((row) => html`<tr><td class="mono"><${Own} text=${row.client} /></td><td class="mono">${row.ok ? html`<${Own} text=${JSON.stringify(row.value)} />` : html`<${Badge} level="fail" text=${plain(row.error || t("failed"))} />`}</td></tr>`)}</tbody></table></div></section>
    <section><h2>${t("Why these clients")}</h2><${Failed} error=${draws.error} />
      ${draws.value ? html`<p>${t("Selector:")} <span class="mono"><${Own} text=${draws.value.selector || "—"} /></span>. ${t("{wanted} wanted, {done} done, {replaced} replaced, {missed} missed.", { wanted: draws.value.wanted, done: draws.value.done.length, replaced: draws.value.replaced.length, missed: draws.value.missed.length })}
        ${draws.value.replayed === null ? null : draws.value.replayed ? t("The stored draw gives the same clients again.") : t("The stored draw gives other clients.")}</p>` : null}
      <${Command} words=${`muster fleet explain ${name}`} /></section>`;
}

function Tasks() {
  const [round, again] = useState(0);
  const changed = () => again((was) => was + 1);
  const body = (row) => ({ kind: row.kind, target: row.target, where: row.selector, every_minutes: row.every_minutes, pick: row.pick, per_hour: row.per_hour, customer: row.customer, slip_ms: row.slip_ms, options: row.options, paused: row.paused });
  const load = async ({ search, after, limit }) => {
    const found = await ask("GET", `api/v1/fleet/tasks${query({ search, after, limit })}`);
    return { rows: found.tasks, next: found.next };
  };
  const columns = [
    { key: "name", title: t("task"), show: (row) => html`<a href=${`#/fleet/runs/${encodeURIComponent(row.name)}`}><${Own} text=${row.name} /></a>` },
    { key: "kind", title: t("kind"), show: (row) => html`<${Own} text=${row.kind} />` },
    { key: "selector", title: t("clients"), show: (row) => html`<span class="mono"><${Own} text=${row.selector} /></span>` },
    { key: "often", title: t("how often"), show: (row) => (row.per_hour ? t("{per_hour} an hour", row) : t("{pick} each {every_minutes} min", row)) },
    { key: "paused", title: t("state"), show: (row) => html`<${Badge} level=${row.refused ? "fail" : row.paused ? "warn" : "ok"} text=${row.refused ? t("refused: {why}", { why: row.refused }) : row.paused ? t("paused") : t("runs")} />` },
    { key: "act", title: t("actions"), show: (row) => html`<span class="row">
      <${Action} title=${row.paused ? t("Resume {name}", row) : t("Pause {name}", row)} label=${row.paused ? t("Resume") : t("Pause")} done=${changed} run=${async () => { await ask("PUT", at`api/v1/fleet/tasks/${row.name}`, { ...body(row), paused: !row.paused }); }} />
      <${Action} title=${t("Remove {name}", row)} label=${t("Remove")} danger done=${changed} about=${t("Its runs and results stay.")} run=${async () => { await ask("DELETE", at`api/v1/fleet/tasks/${row.name}`); }} /></span>` }];
  const add = async ({ name, kind, target, where, per_hour }) => { await ask("PUT", at`api/v1/fleet/tasks/${name}`, { kind, target, where, per_hour: Number(per_hour) }); };
  const refresh = async () => { await ask("POST", "api/v1/fleet/refresh"); };
  return html`<section><h2>${t("Continuous tasks")}</h2><div class="row">
      <${Action} title=${t("Add a task")} run=${add} done=${changed} fields=${[{ name: "name", label: t("Name"), required: true, autocomplete: "off" }, { name: "kind", label: t("Kind of measurement"), value: "ping", required: true }, { name: "target", label: t("Target for the clients") }, { name: "where", label: t("Selector; empty: all clients") }, { name: "per_hour", label: t("Samples an hour"), value: "30", type: "number", required: true }]} />
      <${Action} title=${t("Read the table again")} run=${refresh} done=${changed} about=${t("After another program wrote the table of tasks.")} /></div>
    <${Table} name=${t("Continuous tasks")} search columns=${columns} load=${load} keys=${[round]} empty=${t("There is no task. Add one here.")} /><${Command} words="muster fleet task ls" /></section>`;
}

function Clients() {
  const [where, set] = useState("");
  const load = async ({ limit, after }) => {
    const found = await ask("GET", `api/v1/fleet/clients${query({ where, limit, after })}`);
    return { rows: found.clients, next: found.next, all: found.total };
  };
  const columns = [
    { key: "name", title: t("client"), show: (row) => html`<span class="mono"><${Own} text=${row.name} /></span>` },
    { key: "attributes", title: t("marks"), show: (row) => html`<span class="mono"><${Own} text=${Object.entries(row.attributes).map(([name, values]) => `${name}=${values.join(",")}`).join(" ")} /></span>` },
    { key: "weight", title: t("weight"), number: true, show: (row) => count(row.weight, 2) },
    { key: "picked", title: t("picked"), number: true, show: (row) => count(row.picked) },
    { key: "in_flight", title: t("in progress"), number: true }];
  return html`<section><h2>${t("Clients")}</h2><${Ask} label=${t("Select")} fields=${[{ name: "where", label: t("Selector, as province=520000 and not carrier in (1, 2)") }]} submit=${(asked) => set(asked.where)} />
    <${Table} name=${t("Clients")} columns=${columns} load=${load} keys=${[where]} empty=${t("No client matches. Start some: muster fleet agents --count 10")} /><${Command} words=${`muster fleet clients '${where}'`} /></section>`;
}
