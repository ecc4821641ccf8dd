// The console: login, the frame of all pages, and which page is shown.
import { html, render, useEffect, useState } from "./dom.js";
import { age, time } from "./figures.js";
import * as live from "./live.js";
import { act, Failed, Field } from "./parts.js";
import { ask, use } from "./server.js";
import { choose, keep, language, languages, preferred, t } from "./texts.js";
import { Doctor } from "./pages/doctor.js";
import { Fleet } from "./pages/fleet.js";
import { Keys } from "./pages/keys.js";
import { Likes } from "./pages/likes.js";
import { Messages } from "./pages/messages.js";
import { Node } from "./pages/node.js";
import { Overview } from "./pages/overview.js";
import { Presence } from "./pages/presence.js";
import { Rooms } from "./pages/rooms.js";
import { Topology } from "./pages/topology.js";

const PAGES = {
  overview: { title: "Overview", show: Overview },
  rooms: { title: "Rooms", show: Rooms, system: "rooms" },
  topology: { title: "Topology", show: Topology },
  presence: { title: "Presence", show: Presence, system: "presence" },
  likes: { title: "Likes", show: Likes, system: "likes" },
  messages: { title: "Messages", show: Messages, system: "messages" },
  fleet: { title: "Fleet", show: Fleet, system: "fleet" },
  keys: { title: "Keys and audit", show: Keys },
  doctor: { title: "Doctor", show: Doctor },
};
const LOOKS = ["auto", "light", "dark"];

function place() {
  const [page, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { page: page || "overview", rest: rest.map(decodeURIComponent) };
}

function look(wanted) {
  if (wanted === "auto") delete document.documentElement.dataset.look;
  else document.documentElement.dataset.look = wanted;
}

function Login({ enter, told }) {
  const [state, set] = useState({ busy: false, error: told });
  const [byKey, setByKey] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    const form = Object.fromEntries(new FormData(event.target));
    set({ busy: true, error: null });
    try { enter(await ask("POST", "api/v1/console/session", form)); } catch (error) { set({ busy: false, error }); }
  };
  const fields = byKey ? [{ name: "key", label: t("API key with the scope console"), type: "password", required: true, autocomplete: "off" }] : [
    { name: "name", label: t("Name"), required: true, autocomplete: "username" },
    { name: "password", label: t("Password"), type: "password", required: true, autocomplete: "current-password" }];
  return html`<main id="content"><section class="login">
    <h1>Muster</h1>
    <form onSubmit=${send}>
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} />`)}
      <${Failed} error=${state.error} />
      <div class="row"><button class="strong" type="submit" disabled=${state.busy}>${t("Log in")}</button>
        <button type="button" onClick=${() => setByKey(!byKey)}>${byKey ? t("Use a name and a password") : t("Use an API key")}</button></div>
    </form>
    <p class="dim">${t("On the machine of the instance, this command prints a link that logs in once:")} <code>muster console login</code></p>
    <${Choices} />
  </section></main>`;
}

function Choices() {
  const [wanted, set] = useState(localStorage.getItem("muster-look") || "auto");
  const looks = { auto: t("Look of the system"), light: t("Light"), dark: t("Dark") };
  return html`<span class="row">
    <select aria-label=${t("Language")} value=${language} onChange=${async (event) => { await keep(event.target.value); dispatchEvent(new Event("muster-texts")); }}>
      ${Object.entries(languages).map(([code, name]) => html`<option value=${code} selected=${code === language} lang=${code}>${name}</option>`)}</select>
    <select aria-label=${t("Look")} value=${wanted} onChange=${(event) => { set(event.target.value); localStorage.setItem("muster-look", event.target.value); look(event.target.value); }}>
      ${LOOKS.map((each) => html`<option value=${each} selected=${each === wanted}>${looks[each]}</option>`)}</select></span>`;
}

function Stale() {
  const now = live.useLive();
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((was) => was + 1), 1000); return () => clearInterval(timer); }, []);
  const since = now.heard ? (Date.now() - now.heard) / 1000 : 0;
  if (now.error) return html`<div class="notice warn" role="status">${t("The nodes cannot be read: {why}", { why: now.error })}</div>`;
  if (now.sample && since > 3 * now.sample.every_s + 2) return html`<div class="notice warn" role="status">${t("This page shows what was known {age} ago; the console does not answer.", { age: age(since) })}</div>`;
  return null;
}

function AsOf() {
  const { sample } = live.useLive();
  return sample ? html`<span>${t("As of {time}", { time: time(sample.at * 1000) })}</span>` : null;
}

function Frame({ session, leave }) {
  const [where, go] = useState(place());
  useEffect(() => {
    const moved = () => { go(place()); document.getElementById("content")?.focus(); };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const known = where.page === "nodes" ? { title: "Node", show: Node } : PAGES[where.page] || PAGES.overview;
  useEffect(() => { document.title = `${t(known.title)} · Muster`; }, [where, language]);
  const away = known.system && session.systems[known.system] === false;
  return html`<div>
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>${t("Skip to the content")}</a>
    <header class="top"><strong>Muster</strong>
      <nav aria-label=${t("Pages")}>${Object.entries(PAGES).map(([name, page]) => html`<a href="#/${name}" aria-current=${name === where.page ? "page" : undefined}>${t(page.title)}</a>`)}</nav>
      <div class="who"><span>${session.user} (${t(session.role)})</span><${Choices} /><button type="button" onClick=${leave}>${t("Log out")}</button></div></header>
    <main id="content" tabindex="-1">
      <${Stale} />
      ${away ? html`<div class="notice warn">${t("This system does not run here. Start it:")} <code>muster up --with ${known.system}</code></div>` : null}
      <${known.show} key=${where.page + where.rest.join("/")} rest=${where.rest} />
    </main>
    <footer><${AsOf} /></footer></div>`;
}

function Console() {
  const [state, set] = useState({ session: undefined, told: null });
  const [, again] = useState(0);
  const leave = (told = null) => { live.stop(); act(null); use(null, () => {}); set({ session: null, told }); };
  const ended = () => leave(t("The session has ended. Log in again."));
  const enter = (session) => { use(session, ended); act(session); live.start(ended); set({ session, told: null }); };
  useEffect(() => {
    addEventListener("muster-texts", () => again((was) => was + 1));
    begin().then(enter, (error) => leave(error.code === "no_credential" ? null : error));
    addEventListener("hashchange", () => { if (location.hash.startsWith("#login=")) begin().then(enter, leave); });
  }, []);
  if (state.session === undefined) return html`<main><p>${t("Loading …")}</p></main>`;
  if (state.session === null) return html`<${Login} enter=${enter} told=${state.told} />`;
  const logout = async () => { try { await ask("DELETE", "api/v1/console/session"); } finally { leave(); } };
  return html`<${Frame} session=${state.session} leave=${logout} />`;
}

async function begin() {
  if (location.hash.startsWith("#login=")) {
    const code = location.hash.slice("#login=".length);
    history.replaceState(null, "", "#/overview");
    return ask("POST", "api/v1/console/session", { code });
  }
  return ask("GET", "api/v1/console/session");
}

look(localStorage.getItem("muster-look") || "auto");
await choose(preferred());
render(html`<${Console} />`, document.getElementById("page"));
