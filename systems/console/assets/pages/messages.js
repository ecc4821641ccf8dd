// Delayed messages: topics, and one topic with what waits, its figures, its dead letters.
import { html, useState } from "../dom.js";
import { Curve } from "../curve.js";
import { age, count, ms, plain, rate, time } from "../figures.js";
import { Action, Ask, Badge, Command, Failed, Own, Table, useAsked } from "../parts.js";
import { answer, ask, at, query } from "../server.js";
import { t } from "../texts.js";

const link = (topic) => `#/messages/${encodeURIComponent(topic)}`;

export function Messages({ rest }) {
  return rest.length ? html`<${Topic} name=${rest[0]} />` : html`<${Topics} />`;
}

function Topics() {
  const load = async ({ search, after, limit }) => {
    const found = await ask("GET", `api/v1/topics${query({ search, after, limit })}`);
    return { rows: found.topics, next: found.next };
  };
  const columns = [
    { key: "name", title: t("topic"), show: (row) => html`<a href=${link(row.name)}><${Own} text=${row.name} /></a> ${row.paused ? html`<${Badge} level="warn" text=${t("paused")} />` : null}` },
    { key: "callback", title: t("target"), show: (row) => html`<${Own} text=${row.callback} />` },
    { key: "workers", title: t("workers"), number: true },
    { key: "policy", title: t("policy") },
    { key: "timeout_s", title: t("timeout"), number: true, show: (row) => `${row.timeout_s} s` }];
  return html`<h1>${t("Messages")}</h1><section><${Table} name=${t("Topics")} search columns=${columns} load=${load}
    empty=${t("There is no topic. Make one: muster topic create orders --callback https://shop.example/due")} /><${Command} words="muster topic ls" /></section>`;
}

function level(state) {
  return state === "done" || state === "scheduled" ? "ok" : state === "dead" ? "fail" : "warn";
}

function Topic({ name }) {
  const [round, again] = useState(0);
  const changed = () => again((was) => was + 1);
  const path = at`api/v1/topics/${name}`;
  const { value, error } = useAsked(() => ask("GET", path), [path, round]);
  const send = async ({ data, in_s, id }) => {
    const words = query({ in_ms: Math.round(1000 * Number(in_s || 0)), id });
    const found = (await answer("POST", `${path}/messages${words}`, data, "text/plain")).document;
    return t("Accepted as {id}, due {time}.", { id: found.id, time: time(found.due_at) });
  };
  const change = async ({ callback, workers, policy, timeout_s }) => {
    await ask("PATCH", path, { ...(callback === value.callback ? {} : { callback }), workers: Number(workers), policy, timeout_s: Number(timeout_s) });
  };
  const pause = async () => { await ask("PATCH", path, { paused: !value.paused }); };
  const tiles = value ? [[t("waiting"), count(value.pending)], [t("overdue"), count(value.overdue)], [t("dead letters"), count(value.dead)], [t("workers"), count(value.workers)], [t("policy"), value.policy], [t("timeout"), `${value.timeout_s} s`]] : [];
  return html`<h1><a href="#/messages">${t("Messages")}</a>: <${Own} text=${name} /></h1><${Failed} error=${error} />
    ${value ? html`<div class="tiles">${tiles.map(([title, text]) => html`<div class="tile"><span>${title}</span><b>${text}</b></div>`)}</div>
      <section><p>${t("Target")}: <span class="mono"><${Own} text=${value.callback} /></span></p>
        ${value.paused ? html`<div class="notice warn">${t("This topic is paused: its messages wait.")}</div>` : null}
        ${value.held.length ? html`<div class="notice warn">${value.held.map((each) => html`<p><${Own} text=${`${each.url}: ${each.why}`} />, ${time(each.until)}</p>`)}</div>` : null}
        <div class="row">
        <${Action} title=${t("Send a message")} strong run=${send} done=${changed} fields=${[{ name: "data", label: t("Content"), type: "textarea", required: true }, { name: "in_s", label: t("Due in, in seconds"), value: "60", type: "number" }, { name: "id", label: t("Id; empty: a new one"), autocomplete: "off" }]} />
        <${Action} title=${t("Change the topic")} run=${change} done=${changed} fields=${[{ name: "callback", label: t("Target"), value: value.callback }, { name: "workers", label: t("Workers"), value: value.workers, type: "number" }, { name: "policy", label: t("Policy"), value: value.policy }, { name: "timeout_s", label: t("Timeout, in seconds"), value: value.timeout_s, type: "number" }]} />
        <${Action} title=${value.paused ? t("Resume {name}", { name }) : t("Pause {name}", { name })} label=${value.paused ? t("Resume") : t("Pause")} run=${pause} done=${changed}
          about=${value.paused ? t("Its messages are fired again, first those that are overdue.") : t("Its messages wait, also when they are due. Callbacks that run end as they would.")} />
        <button type="button" onClick=${changed}>${t("Reload")}</button></div><${Command} words=${`muster topic show ${name}`} /></section>` : null}
    <${Stats} path=${path} name=${name} round=${round} />
    <${One} path=${path} changed=${changed} />
    <${Waiting} path=${path} name=${name} round=${round} changed=${changed} />
    <${Dead} path=${path} name=${name} round=${round} changed=${changed} />`;
}

function Stats({ path, name, round }) {
  const { value, error } = useAsked(() => ask("GET", `${path}/stats`), [path, round]);
  if (!value) return html`<${Failed} error=${error} />`;
  const times = value.minutes.map((each) => each.minute / 1000);
  const of = (key, label) => ({ label, values: value.minutes.map((each) => each[key] ?? null) });
  const due = Object.entries(value.backlog);
  const most = Math.max(1, ...due.map(([, number]) => number));
  return html`<div class="wide">
    ${times.length ? html`<${Curve} title=${t("By minute")} times=${times} series=${[of("accepted", t("accepted")), of("fired", t("fired")), of("retries", t("retries"))]} show=${count} />
      <${Curve} title=${t("Lateness")} times=${times} series=${[of("lateness_p50_ms", "p50"), of("lateness_p99_ms", "p99")]} show=${ms} />` : html`<p class="empty">${t("No message came in the last two hours.")}</p>`}
    <section><h2>${t("What is due when")}</h2>${due.length ? html`<table><tbody>${due.map(([when, number]) => html`<tr><th scope="row">${plain(when)}</th><td class="num">${count(number)}</td><td><meter min="0" max=${most} value=${number} aria-label=${plain(when)}></meter></td></tr>`)}</tbody></table>` : html`<p class="empty">${t("Nothing waits.")}</p>`}
      <${Command} words=${`muster topic stats ${name}`} /></section></div>`;
}

// The content of a message as text: JSON as it is, bytes as UTF-8 if they are, else in hex.
function content(message) {
  if (message.data !== undefined) return JSON.stringify(message.data);
  const raw = Uint8Array.from(atob(message.base64 || ""), (each) => each.charCodeAt(0));
  try { return new TextDecoder("utf-8", { fatal: true }).decode(raw); } catch { return Array.from(raw, (each) => each.toString(16).padStart(2, "0")).join(" "); }
}

function changes(path, message, changed) {
  const base = `${path}/messages/${encodeURIComponent(message.id)}`;
  const told = (found) => t("Outcome: {outcome}", found);
  return html`<span class="row">
    <${Action} title=${t("Cancel {id}", message)} label=${t("Cancel")} danger done=${changed} about=${t("The message is not delivered.")} run=${async () => told(await ask("POST", `${base}/cancel`))} />
    <${Action} title=${t("Postpone {id}", message)} label=${t("Postpone")} done=${changed} fields=${[{ name: "by_s", label: t("By, in seconds"), type: "number", value: "600", required: true }]} run=${async ({ by_s }) => told(await ask("POST", `${base}/postpone`, { by_ms: 1000 * Number(by_s) }))} />
    <${Action} title=${t("Advance {id}", message)} label=${t("Advance")} done=${changed} fields=${[{ name: "by_s", label: t("By, in seconds"), type: "number", value: "600", required: true }]} run=${async ({ by_s }) => told(await ask("POST", `${base}/advance`, { by_ms: 1000 * Number(by_s) }))} /></span>`;
}

function One({ path, changed }) {
  const [id, set] = useState("");
  const { value, error } = useAsked(() => (id ? ask("GET", `${path}/messages/${encodeURIComponent(id)}`) : Promise.resolve(null)), [path, id]);
  return html`<section><h2>${t("One message")}</h2><${Ask} label=${t("Find")} fields=${[{ name: "id", label: t("Id of a message"), required: true }]} submit=${(asked) => set(asked.id)} />
    ${id ? html`<${Failed} error=${error} />` : null}
    ${value ? html`<p><${Badge} level=${level(value.state)} text=${plain(value.state)} /> ${t("due {due}, accepted {accepted}, {attempts} attempts", { due: time(value.due_at), accepted: time(value.accepted_at), attempts: value.attempts })}</p>
      <pre tabindex="0" aria-label=${t("content")}>${plain(content(value))}</pre>
      ${value.result ? html`<p>${t("result")}: <span class="mono"><${Own} text=${JSON.stringify(value.result)} /></span></p>` : null}${changes(path, value, changed)}` : null}</section>`;
}

function Waiting({ path, name, round, changed }) {
  const [state, set] = useState("");
  const load = async ({ limit, after }) => {
    const found = await ask("GET", `${path}/messages${query({ states: state, limit, after })}`);
    return { rows: found.messages, next: found.next, matching: found.matching };
  };
  const columns = [
    { key: "id", title: t("id"), show: (row) => html`<span class="mono"><${Own} text=${row.id} /></span>` },
    { key: "state", title: t("state"), show: (row) => html`<${Badge} level=${level(row.state)} text=${plain(row.state)} />` },
    { key: "due_at", title: t("due"), show: (row) => time(row.next_at || row.due_at) },
    { key: "attempts", title: t("attempts"), number: true },
    { key: "data", title: t("content"), show: (row) => html`<span class="mono"><${Own} text=${content(row).slice(0, 200)} /></span>` },
    { key: "act", title: t("actions"), show: (row, again) => changes(path, row, () => { again(); changed(); }) }];
  const filters = html`<select aria-label=${t("State")} onChange=${(event) => set(event.target.value)}>
    ${["", "scheduled", "retry", "firing", "done", "dead", "cancelled", "expired"].map((each) => html`<option value=${each}>${each || t("waiting")}</option>`)}</select>`;
  return html`<section><h2>${t("Messages")}</h2><${Table} name=${t("Messages")} columns=${columns} load=${load} keys=${[path, state, round]} filters=${filters} empty=${t("No message in this state.")} />
    <${Command} words=${`muster delay ls ${name}`} /></section>`;
}

function Dead({ path, name, round, changed }) {
  const load = async ({ limit, after }) => {
    const found = await ask("GET", `${path}/dead${query({ limit, after })}`);
    return { rows: found.letters, next: found.next };
  };
  const one = (id, verb) => async () => t("Outcome: {outcome}", await ask("POST", `${path}/dead/${encodeURIComponent(id)}/${verb}`));
  const columns = [
    { key: "id", title: t("id"), show: (row) => html`<span class="mono"><${Own} text=${row.message.id} /></span>` },
    { key: "died_at", title: t("died"), show: (row) => time(row.died_at) },
    { key: "last", title: t("last answer"), show: (row) => html`<${Own} text=${`${row.last}${row.status ? ` ${row.status}` : ""} ${row.answer.slice(0, 300)}`} />` },
    { key: "act", title: t("actions"), show: (row, again) => { const done = () => { again(); changed(); }; return html`<span class="row">
      <${Action} title=${t("Replay {id}", row.message)} label=${t("Replay")} done=${done} about=${t("The message is due now, with all its attempts.")} run=${one(row.message.id, "replay")} />
      <${Action} title=${t("Drop {id}", row.message)} label=${t("Drop")} danger done=${done} about=${t("The message is given up: nothing can replay it.")} run=${one(row.message.id, "drop")} /></span>`; } }];
  const whole = async (verb) => {  // the letters that are dead now: those that die meanwhile are not listed by `until`
    let count = 0, page = { until: 0, next: "" };
    do {
      page = await ask("POST", `${path}/dead/${verb}${query({ until: page.until, after: page.next })}`);
      count += page.changed;
    } while (page.next);
    return count;
  };
  return html`<section><h2>${t("Dead letters")}</h2><div class="row"><${Action} title=${t("Replay all")} about=${t("Every dead letter of this topic is due now, with all its attempts.")} done=${changed} run=${async () => t("{count} dead letters are due again.", { count: await whole("replay") })} />
      <${Action} title=${t("Drop all")} danger about=${t("Every dead letter of this topic is given up: nothing can replay it.")} done=${changed} run=${async () => t("{count} dead letters were dropped.", { count: await whole("drop") })} /></div>
    <${Table} name=${t("Dead letters")} columns=${columns} load=${load} keys=${[path, round]} empty=${t("No dead letter. Messages come here after their last attempt.")} />
    <${Command} words=${`muster delay dead ls ${name}`} /></section>`;
}
