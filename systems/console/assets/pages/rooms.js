// Rooms by name; and one room: live messages, the path through the nodes, history, members, and what an operator sends.
import { html, useEffect, useRef, useState } from "../dom.js";
import { EndSessions } from "../devices.js";
import { bytes, count, plain, rate, time } from "../figures.js";
import { useLive } from "../live.js";
import { Paths } from "../paths.js";
import { Action, Ask, Badge, Command, Failed, Own, Table, useAsked } from "../parts.js";
import { answer, ask, at, query } from "../server.js";
import { t } from "../texts.js";

const KEPT = 500;
const FEW = 2000;  // as many rooms are listed again with each reading of the nodes
const DRAW_MS = 200;
const OVER_S = 10;  // of which time the messages of one room are counted

export function Rooms({ rest }) {
  return rest.length ? html`<${Room} name=${rest.join("/")} />` : html`<${List} />`;
}

const link = (name) => `#/rooms/${encodeURIComponent(name)}`;

function List() {
  const { sample } = useLive();
  const [many, setMany] = useState(false);
  const columns = [
    { key: "name", title: t("room"), show: (row) => html`<a href=${link(row.name)}><${Own} text=${row.name} /></a>` },
    { key: "members", title: t("members"), number: true, show: (row) => count(row.members) },
    { key: "per_s", title: t("messages/s"), number: true, show: (row) => rate(row.per_s) },
    { key: "held", title: t("messages kept"), number: true, show: (row) => count(row.held) },
    { key: "held_bytes", title: t("bytes kept"), number: true, show: (row) => bytes(row.held_bytes) },
    { key: "flow", title: t("flow") },
    { key: "owner", title: t("owner"), show: (row) => html`<${Own} text=${row.owner || ""} />` },
    { key: "gateways", title: t("gateways"), show: (row) => html`<${Own} text=${(row.gateways || []).join(", ")} />` }];
  const load = async ({ search, after, limit }) => {
    const found = await ask("GET", `api/v1/rooms${query({ search, after, limit })}`);
    setMany(found.matching > FEW);
    return { rows: found.rooms, total: found.matching, next: found.next };
  };
  return html`<h1>${t("Rooms")}</h1><section>
    <${Ask} label=${t("Open")} fields=${[{ name: "room", label: t("Name of a room"), required: true }]} submit=${({ room }) => { location.hash = link(room); }} />
    <${Table} name=${t("Rooms")} search columns=${columns} load=${load} keys=${[many ? 0 : sample && sample.at]} empty=${t("No room has members or messages. Join one: muster sub demo")} />
    <${Command} words="muster rooms ls --rate" /></section>`;
}

function body(message, form) {
  if (form === "hex" || message.encoding === "base64") {
    const raw = message.encoding === "base64" ? Uint8Array.from(atob(message.data), (each) => each.charCodeAt(0)) : new TextEncoder().encode(message.data);
    if (form === "hex" || form === "text") return Array.from(raw, (each) => each.toString(16).padStart(2, "0")).join(" ");
  }
  if (form === "json") { try { return plain(JSON.stringify(JSON.parse(message.data), null, 2)); } catch { /* it is not JSON */ } }
  return plain(message.data);
}

function Room({ name }) {
  const [round, again] = useState(0);
  const path = at`api/v1/rooms/${name}`;
  const publish = async ({ data }) => t("Published at {position}.", (await answer("POST", `${path}/messages`, data, "text/plain")).document);
  const command = async ({ data, expires }) => {
    const found = (await answer("POST", `${path}/commands${query({ expires })}`, data, "text/plain")).document;
    return t("Outcome: {outcome}, {members} members.", found);
  };
  return html`<h1><a href="#/rooms">${t("Rooms")}</a>: <${Own} text=${name} /></h1>
    <section><div class="row">
      <${Action} title=${t("Publish")} strong run=${publish} about=${t("Every member of the room gets this message.")} fields=${[{ name: "data", label: t("Message"), type: "textarea", required: true }]} />
      <${Action} title=${t("Send a command")} run=${command} about=${t("Every member of the room gets this command, and its outcome is told.")}
        fields=${[{ name: "data", label: t("Command"), type: "textarea", required: true }, { name: "expires", label: t("Give up after, in seconds"), value: "5", type: "number" }]} />
      <button type="button" onClick=${() => again((was) => was + 1)}>${t("Reload")}</button></div></section>
    <${Tail} path=${path} name=${name} />
    <${Paths} path=${path} name=${name} round=${round} />
    <div class="wide"><${Members} path=${path} name=${name} round=${round} /><${History} path=${path} name=${name} round=${round} /></div>`;
}

// The messages a second of the last seconds, those in gaps included; null in the first second.
function usePerSecond() {
  const seen = useRef([]);
  const [value, set] = useState(null);
  useEffect(() => {
    const began = Date.now();
    const clock = setInterval(() => {
      const from = Math.max(began, Date.now() - 1000 * OVER_S);
      seen.current = seen.current.filter((each) => each.at >= from);
      set(seen.current.reduce((sum, each) => sum + each.count, 0) / Math.max(1, (Date.now() - from) / 1000));
    }, 1000);
    return () => clearInterval(clock);
  }, []);
  const add = ({ what, gap }) => {
    const many = what === "message" ? 1 : what === "gap" && gap.last !== null ? Math.max(0, gap.last - gap.first + 1) : 0;
    const last = seen.current.at(-1);
    if (last && Date.now() - last.at < 100) last.count += many;
    else seen.current.push({ at: Date.now(), count: many });
  };
  return { value, add };
}

function Tail({ path, name }) {
  const [form, setForm] = useState("text");
  const [paused, setPaused] = useState(false);
  const [state, set] = useState({ lines: [], told: "", error: null, held: 0 });
  const halted = useRef(false);
  const perSecond = usePerSecond();
  useEffect(() => {
    const source = new EventSource(`${path}/messages`);
    // Lines are drawn five times a second at most, however many come.
    let waiting = [];
    let drawing = null;
    let serial = 0;
    const draw = () => {
      const [lines, more] = halted.current ? [[], waiting.length] : [waiting, 0];
      waiting = [];
      drawing = null;
      set((was) => ({ ...was, held: was.held + more, lines: [...was.lines, ...lines].slice(-KEPT) }));
    };
    const put = (line) => {
      perSecond.add(line);
      waiting.push({ ...line, at: Date.now(), key: (serial += 1) });
      if (waiting.length > KEPT && !halted.current) waiting.shift();
      drawing ??= setTimeout(draw, DRAW_MS);
    };
    source.onopen = () => set((was) => ({ ...was, told: "open", error: null }));
    source.onmessage = (event) => put({ what: "message", message: JSON.parse(event.data) });
    source.addEventListener("gap", (event) => put({ what: "gap", gap: JSON.parse(event.data) }));
    source.addEventListener("command", (event) => put({ what: "command", message: JSON.parse(event.data) }));
    source.onerror = () => set((was) => ({ ...was, told: source.readyState === EventSource.CLOSED ? "closed" : "again" }));
    return () => { source.close(); clearTimeout(drawing); };
  }, [path]);
  const toggle = () => { halted.current = !paused; setPaused(!paused); set((was) => ({ ...was, held: 0 })); };
  const states = { "": t("connecting"), open: t("live"), again: t("connecting again"), closed: t("refused; reload the page") };
  return html`<section><h2>${t("Live messages")}</h2>
    <div class="row"><${Badge} level=${state.told === "open" ? "ok" : "warn"} text=${states[state.told]} />
      <span>${perSecond.value === null ? null : t("{count} messages/s", { count: count(perSecond.value, 1) })}</span>
      <button type="button" aria-pressed=${paused} onClick=${toggle}>${paused ? t("Go on") : t("Pause")}</button>
      <select aria-label=${t("Form of messages")} onChange=${(event) => setForm(event.target.value)}><option value="text">${t("text")}</option><option value="json">JSON</option><option value="hex">hex</option></select>
      ${paused && state.held ? html`<span role="status">${t("{count} events were not shown while it was paused", { count: state.held })}</span>` : null}</div>
    <div class="tail scroll" tabindex="0" role="log" aria-label=${t("Live messages")}>
      ${state.lines.length ? html`<table><tbody>${state.lines.map((line) => html`<tr key=${line.key}>
        <td class="when">${time(line.at)}</td>
        ${line.what === "gap" ? html`<td colspan="2"><${Badge} level="warn" text=${t("gap: {reason}, offsets {first} to {last}", { ...line.gap, last: line.gap.last ?? "?" })} /></td>`
          : html`<td class="mono">${plain(line.message.sender)}</td><td class="mono" data-position=${line.message.position || ""}>${line.what === "command" ? html`<${Badge} level="ok" text=${t("command")} /> ` : null}<bdi>${body(line.message, form)}</bdi></td>`}</tr>`)}</tbody></table>`
        : html`<p class="empty">${t("Messages appear here as they come.")}</p>`}</div>
    <${Command} words=${`muster sub ${name}`} /></section>`;
}

function Members({ path, name, round }) {
  const { value, error } = useAsked(() => ask("GET", `${path}/members?ids=true`), [path, round]);
  return html`<section><h2>${t("Members")}</h2><${Failed} error=${error} />
    ${value ? html`<p>${t("{count} members", { count: count(value.count) })}${value.partial ? ` (${t("a gateway did not answer")})` : ""}</p>
      <p class="mono">${value.ids.slice(0, 200).map((id) => html`<a href=${`#/presence/${encodeURIComponent(id)}`}><${Own} text=${id} /></a> `)}${value.truncated || value.ids.length > 200 ? "…" : ""}</p>` : null}
    <div class="row"><${EndSessions} room=${name} /></div>
    <${Command} words=${`muster members ${name}`} /><${Command} words=${`muster rooms end ${name} 7`} /></section>`;
}

function History({ path, name, round }) {
  const { value, error } = useAsked(() => ask("GET", `${path}/messages?history=50`), [path, round]);
  return html`<section><h2>${t("Last messages")}</h2><${Failed} error=${error} />
    ${value ? value.messages.length ? html`<div class="tail scroll" tabindex="0" role="region" aria-label=${t("Last messages")}><table><tbody>${[...value.messages].reverse().map((each) => html`<tr><td class="mono">${plain(each.position)}</td><td class="mono">${plain(each.sender)}</td><td class="mono"><bdi>${body(each, "text")}</bdi></td></tr>`)}</tbody></table></div>`
      : html`<p class="empty">${t("No message is kept.")}</p>` : null}
    <${Command} words=${`muster sub ${name} --history 50`} /></section>`;
}
